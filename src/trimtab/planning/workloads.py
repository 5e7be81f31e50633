"""Generated sample sizes: the mixes the balancing literature reports on, from a seed.

Three kinds of sample: an image with a question (log-normal, 200 to 2,000 tokens), a short video (log-normal, 2,000 to
8,000) and a long video (bounded Pareto, 8,000 to 64,000). The mixes 5:2:1, 1:2:5 and only video are those of the
FlexRL paper; its data sets' exact lengths are not published, so these are stand-ins of the same ranges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.schema.metadata import BatchMetadata

MIXES: dict[str, tuple[int, int, int]] = {
    "image-heavy": (5, 2, 1),
    "video-heavy": (1, 2, 5),
    "only-video": (0, 1, 1),
}
_MERGE = 2
_TEXT_SHARE = (0.25, 0.05, 0.01)
# Merged tokens along each side of a video frame; 640 x 360 pixels give 23 x 13 at 28 pixels a token.
_FRAME_SIDES = ((9, 9), (12, 9), (17, 10), (23, 13))


def generated_batch(mix: str, samples: int, seed: int) -> BatchMetadata:
    """A batch of one of ``MIXES``.

    Args:
        mix: its name.
        samples: N.
        seed: the same seed gives the same batch.

    Raises:
        SettingsError: the mix is unknown.
    """
    if mix not in MIXES:
        raise SettingsError(f"mix {mix!r} is unknown; choose one of {', '.join(MIXES)}")
    rng = np.random.default_rng(seed)
    weights = np.array(MIXES[mix], dtype=np.float64)
    kind = rng.choice(3, size=samples, p=weights / weights.sum())
    tokens = _lengths(rng, kind)
    text = np.maximum(16, tokens * np.array(_TEXT_SHARE)[kind]).astype(np.int64)
    grids = _grids(rng, kind, tokens - text)
    return BatchMetadata(
        sample_ids=tuple(f"{mix}/{row}" for row in range(samples)),
        text_tokens=text,
        loss_tokens=np.maximum(1, text // 2),
        loss_weight=np.ones(samples),
        visual_offsets=np.arange(samples + 1, dtype=np.int64),
        grid_thw=grids,
        is_video=kind > 0,
        visual_keys=np.arange(samples, dtype=np.int64),
        merge_size=_MERGE,
    )


def _lengths(rng: np.random.Generator, kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """Target tokens of each sample."""
    count = len(kind)
    image = _log_normal(rng, count, 200, 2_000, 0.35, 0.55)
    short = _log_normal(rng, count, 2_000, 8_000, 0.4, 0.4)
    long = _bounded_pareto(rng, count, 8_000, 64_000, 1.1)
    return np.choose(kind, [image, short, long]).astype(np.int64)


def _log_normal(
    rng: np.random.Generator, count: int, low: int, high: int, centre: float, spread: float
) -> NDArray[np.float64]:
    mean = np.log(low) + centre * np.log(high / low)
    return np.clip(np.exp(rng.normal(mean, spread, count)), low, high)


def _bounded_pareto(rng: np.random.Generator, count: int, low: int, high: int, exponent: float) -> NDArray[np.float64]:
    drawn = rng.random(count)
    return np.asarray(low * (1 - drawn * (1 - (low / high) ** exponent)) ** (-1 / exponent))


def _grids(rng: np.random.Generator, kind: NDArray[np.int64], visual_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Patch grids of about the wanted tokens: one frame for an image, as many as needed for a video."""
    aspect = np.exp(rng.normal(0.2, 0.25, len(kind)))
    height = np.maximum(2, np.rint(np.sqrt(visual_tokens / aspect)))
    width = np.maximum(2, np.rint(visual_tokens / height))
    sides = np.array(_FRAME_SIDES, dtype=np.float64)[rng.integers(len(_FRAME_SIDES), size=len(kind))]
    frames = np.maximum(2, np.rint(visual_tokens / sides.prod(axis=1)))
    video = kind > 0
    columns = (
        np.where(video, frames, 1),
        np.where(video, sides[:, 1], height) * _MERGE,
        np.where(video, sides[:, 0], width) * _MERGE,
    )
    return np.stack(columns, axis=1).astype(np.int64)
