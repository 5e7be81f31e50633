"""Named data sets: sizes drawn to what their sources publish, with what they leave open as settings.

Quantiles of image sizes and video lengths come from the data sets' own files; question lengths and what else no source
gives are assumptions, stated beside each generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.simulate.scenario import MediaSettings

Ints = NDArray[np.int64]
_SOURCE_FPS = 29.97
TILE_SIDE = 448


@dataclass(frozen=True, eq=False, kw_only=True)
class RawSamples:
    """N samples before a model's processor sees them, each with one image, one video or some tiles.

    Attributes:
        text_tokens: int64 [N].
        width, height: int64 [N], pixels of the file.
        frames: int64 [N], frames of the file; 1 for an image.
        tiles: int64 [N], tiles of 448 x 448 pixels an image is cut to, or 0 where the model's own rule applies.
    """

    text_tokens: Ints
    width: Ints
    height: Ints
    frames: Ints
    tiles: Ints


def geo3k(rng: np.random.Generator, count: int, media: MediaSettings) -> RawSamples:
    """Geometry3K: diagram sizes from the quantiles of InterGPS's geometry_labels.csv; assumed: text of 60 to 140."""
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    drawn = rng.random(count)
    width = np.interp(drawn, levels, (100, 151, 238, 315, 435, 607, 900))
    height = np.interp(_near(rng, drawn), levels, (90, 129, 187, 234, 321, 444, 700))
    one = np.ones(count, dtype=np.int64)
    return RawSamples(
        text_tokens=rng.integers(60, 141, count),
        width=width.astype(np.int64),
        height=height.astype(np.int64),
        frames=one,
        tiles=0 * one,
    )


def nextqa(rng: np.random.Generator, count: int, media: MediaSettings) -> RawSamples:
    """NExT-QA: frames and sizes of its test split (doc-doc/NExT-QA); 25 words of text, 60 to 120 tokens."""
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    frames = np.interp(rng.random(count), levels, (150, 354, 603, 918, 1474, 2697, 5400))
    sides = np.array([(640, 480), (640, 360), (320, 240)])[rng.choice(3, size=count, p=(0.51, 0.41, 0.08))]
    return RawSamples(
        text_tokens=rng.integers(60, 121, count),
        width=sides[:, 0],
        height=sides[:, 1],
        frames=frames.astype(np.int64),
        tiles=np.zeros(count, dtype=np.int64),
    )


def longvila(rng: np.random.Generator, count: int, media: MediaSettings) -> RawSamples:
    """LongVideo-Reason: bounded Pareto durations (assumed, see ``MediaSettings``), 1280 x 720, text of 80 to 200."""
    low, high, tail = media.long_seconds_least, media.long_seconds_most, media.long_tail
    seconds = low * (1 - rng.random(count) * (1 - (low / high) ** tail)) ** (-1 / tail)
    whole = np.ones(count, dtype=np.int64)
    return RawSamples(
        text_tokens=rng.integers(80, 201, count),
        width=1280 * whole,
        height=720 * whole,
        frames=(seconds * _SOURCE_FPS).astype(np.int64),
        tiles=0 * whole,
    )


def internvl(rng: np.random.Generator, count: int, media: MediaSettings) -> RawSamples:
    """InternVL's 1.2M fine-tuning mix as OmniBal describes it: 1.4K +- 0.9K tokens, 1 to 5 tiles of 256.

    Totals are log-normal, cut at 64 and 4,096 tokens (assumed). Tile shares are those of its four published length
    files (70,706 samples of ai2d, docvqa, chartqa and synthdog), as far as a sample's total has room for them.
    """
    tiles = rng.choice((1, 3, 4, 5), size=count, p=np.array((6387, 23977, 652, 39690)) / 70706)
    mean, deviation = 1400.0, 900.0
    sigma = np.sqrt(np.log1p((deviation / mean) ** 2))
    total = np.clip(np.exp(rng.normal(np.log(mean) - sigma**2 / 2, sigma, count)), 64, 4096).astype(np.int64)
    tiles = np.minimum(tiles, (total - 32) // 256)
    return _tiled(total - 256 * tiles, tiles)


def heavy_tail(rng: np.random.Generator, count: int, media: MediaSettings) -> RawSamples:
    """Lengths over two decades: bounded Pareto (exponent 1) of 256 to 32,768 tokens, up to 12 tiles within; assumed.

    A stand-in where a source gives the length of packs and not of what they hold (LoongForge).
    """
    low, high = 256.0, 32_768.0
    total = low / (1 - rng.random(count) * (1 - low / high))
    tiles = np.minimum((total * rng.random(count) / 256).astype(np.int64), 12)
    return _tiled(np.maximum(8, total.astype(np.int64) - 256 * tiles), tiles)


def _tiled(text: Ints, tiles: Ints) -> RawSamples:
    side = np.full(len(text), TILE_SIDE, dtype=np.int64)
    return RawSamples(text_tokens=text, width=side, height=side, frames=np.ones_like(text), tiles=tiles)


def _near(rng: np.random.Generator, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Uniform numbers that mostly agree with ``drawn``: wide diagrams are mostly high ones."""
    other = rng.random(len(drawn))
    return np.where(rng.random(len(drawn)) < 0.6, drawn, other)


DATASETS: dict[str, Callable[[np.random.Generator, int, MediaSettings], RawSamples]] = {
    "geo3k": geo3k,
    "nextqa": nextqa,
    "longvila": longvila,
    "internvl": internvl,
    "heavy-tail": heavy_tail,
}
TILED = frozenset({"internvl", "heavy-tail"})
MIXES: dict[str, str] = {
    "image-heavy": "geo3k:5+nextqa:2+longvila:1",
    "video-heavy": "geo3k:1+nextqa:2+longvila:5",
    "only-video": "nextqa:1+longvila:1",
}
"""FlexRL's mixes of Geo3K, NExTQA and LongVILA-Reason."""
