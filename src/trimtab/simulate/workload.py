"""Where a simulated job's samples come from, and what loading each visual takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import Architecture, VisionArchitecture
from trimtab.errors import MetadataError, SettingsError
from trimtab.families.geometry import vision_geometry
from trimtab.media.geometry import image_grid, video_grid
from trimtab.planning.packing.next_fit import next_fit
from trimtab.planning.peers.as_is import contiguous_ranks
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.table import UNKNOWN, MetadataTable
from trimtab.simulate.datasets import DATASETS, MIXES, TILED, RawSamples
from trimtab.simulate.scenario import MediaSettings

_POOL = 4096
_SOURCE_FPS = 29.97
_TILE_GRID = (1, 32, 32)
_TABLE_FILE = re.compile(r"\.(parquet|csv)$|/", re.IGNORECASE)


@dataclass(frozen=True, eq=False, kw_only=True)
class DrawnStep:
    """The samples of one step.

    Attributes:
        rows: int64 [N], samples of the workload.
        pack_of: int64 [N], pack of each, or None where samples are not packed beforehand.
    """

    rows: NDArray[np.int64]
    pack_of: NDArray[np.int64] | None = None

    def dealt(self, ranks: int) -> NDArray[np.int64]:
        """int64 [N], the rank a sampler deals each sample to: packs in turn, samples in equal blocks."""
        return contiguous_ranks(len(self.rows), ranks) if self.pack_of is None else self.pack_of % ranks


def visual_rows(batch: BatchMetadata, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64, visuals of the samples in ``rows`` of a batch, in their order."""
    offsets = batch.visual_offsets
    counts = offsets[rows + 1] - offsets[rows]
    first = np.repeat(offsets[rows] - (np.cumsum(counts) - counts), counts)
    return np.asarray(first + np.arange(int(counts.sum()), dtype=np.int64))


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """Samples to draw steps from (N samples, V visuals).

    Attributes:
        samples: all of them.
        decode_pixels: float64 [V], pixels that must be decoded to get at a visual's frames.
        kept_pixels: float64 [V], pixels of the resized frames.
        values_per_patch: numbers in one patch, as tensors hold them.
        description: one line: what it is.
    """

    samples: BatchMetadata
    decode_pixels: NDArray[np.float64]
    kept_pixels: NDArray[np.float64]
    values_per_patch: int
    description: str

    def steps(self, batch_size: int, seed: Sequence[int], pack_length: int | None = None) -> Iterator[DrawnStep]:
        """One step after the other: every sample once an epoch, in random order; what fills no step is left out.

        Args:
            batch_size: samples of a step, or packs.
            seed: of the order.
            pack_length: most tokens of a pack, filled in that order; None: samples.

        Raises:
            SettingsError: the data do not fill a step, or a sample no pack.
        """
        rng = np.random.default_rng(list(seed))
        longest = int(self.samples.tokens.max(initial=0))
        if pack_length is not None and longest > pack_length:
            name = self.samples.sample_ids[int(self.samples.tokens.argmax())]
            raise SettingsError(
                f"pack_length={pack_length} is less than the {longest} tokens of sample {name!r}; raise it"
            )
        while True:
            order = rng.permutation(len(self.samples))
            offsets = np.arange(len(order) + 1, dtype=np.int64)
            if pack_length is not None:
                offsets = next_fit(self.samples.tokens[order][:, None], np.array([pack_length])).offsets
            items = len(offsets) - 1
            if batch_size > items:
                kind = "samples" if pack_length is None else "packs"
                raise SettingsError(f"batch_size={batch_size} is more than the {items} {kind} of the data; lower it")
            for start in range(0, items - batch_size + 1, batch_size):
                cuts = offsets[start : start + batch_size + 1]
                pack_of = np.repeat(np.arange(batch_size, dtype=np.int64), np.diff(cuts))
                yield DrawnStep(rows=order[cuts[0] : cuts[-1]], pack_of=None if pack_length is None else pack_of)

    def visuals_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64, visuals of the samples in ``rows``, in their order."""
        return visual_rows(self.samples, rows)


def is_table(data: str) -> bool:
    """Whether ``data`` names a table's file rather than a data set."""
    return _TABLE_FILE.search(data) is not None


def parts_of_mix(data: str) -> list[tuple[str, float]]:
    """(data set, share) of a named data set, a named mix or "geo3k:5+nextqa:2".

    Raises:
        SettingsError: a data set is unknown or a share no positive number.
    """
    parts = []
    for part in MIXES.get(data, data).split("+"):
        name, _, share = part.partition(":")
        if name not in DATASETS:
            known = ", ".join([*MIXES, *DATASETS])
            raise SettingsError(f"data={data!r}: {name!r} is no data set; name a metadata table's file, or of {known}")
        try:
            weight = float(share or 1)
        except ValueError as error:
            raise SettingsError(f"data={data!r}: {share!r} is no number; write {name}:2") from error
        if not 0 < weight < np.inf:
            raise SettingsError(f"data={data!r}: the share {share!r} must be a positive number")
        parts.append((name, weight))
    return parts


def drawn_workload(data: str, architecture: Architecture, media: MediaSettings, *, least: int, seed: int) -> Workload:
    """Samples of named data sets.

    Args:
        data: see ``parts_of_mix``.
        architecture: the model whose processor sizes them.
        media: what the sources leave open.
        least: at least as many samples.
        seed: the same seed gives the same samples.

    Raises:
        SettingsError: the data are unknown, or of a form the model does not take.
    """
    parts = parts_of_mix(data)
    if architecture.vision is None:
        raise SettingsError(f"data={data!r} has images, but model {architecture.name} has no vision encoder")
    geometry = None
    if any(name not in TILED for name, _ in parts):
        geometry = _geometry(data, architecture, media)
    rng = np.random.default_rng([seed, 0])
    weights = np.array([weight for _, weight in parts])
    kind = rng.choice(len(parts), size=max(_POOL, least), p=weights / weights.sum())
    raw = _interleaved([DATASETS[name](rng, len(kind), media) for name, _ in parts], kind)
    names = np.array([name for name, _ in parts])[kind]
    return _workload(raw, names, architecture.vision, geometry, data)


def _geometry(data: str, architecture: Architecture, media: MediaSettings) -> VisionGeometry:
    if not architecture.family.startswith("qwen"):
        raise SettingsError(
            f"data={data!r}: {architecture.name} cuts images to tiles; choose of {', '.join(sorted(TILED))}, or a table"
        )
    stock = vision_geometry({"model_type": architecture.family})
    least = media.image_min_pixels or stock.image_min_pixels
    return replace(
        stock,
        image_min_pixels=least,
        image_max_pixels=max(least, stock.image_max_pixels),
        pixel_rule="frame",
        video_token_cap=None,
        video_fps=media.video_fps,
        video_min_frames=min(stock.video_min_frames, media.video_max_frames),
        video_max_frames=media.video_max_frames,
        video_min_pixels=min(stock.image_min_pixels, media.video_frame_pixels),
        video_max_pixels=media.video_frame_pixels,
    )


def _interleaved(drawn: list[RawSamples], kind: NDArray[np.int64]) -> RawSamples:
    def chosen(name: str) -> NDArray[np.int64]:
        return np.choose(kind, [getattr(each, name) for each in drawn])

    return RawSamples(**{name: chosen(name) for name in ("text_tokens", "width", "height", "frames", "tiles")})


def _workload(
    raw: RawSamples,
    names: NDArray[np.str_],
    vision: VisionArchitecture,
    geometry: VisionGeometry | None,
    description: str,
) -> Workload:
    tiled = np.isin(names, sorted(TILED))
    counts = np.where(tiled, raw.tiles, 1)
    owner = np.repeat(np.arange(len(counts)), counts)
    grids = np.tile(np.array(_TILE_GRID, dtype=np.int64), (len(owner), 1))
    if geometry is not None:
        whole = ~tiled[owner]
        sizes = np.stack([raw.frames, raw.height, raw.width], axis=1)[owner[whole]]
        grids[whole] = _grids(sizes, geometry)
    samples = BatchMetadata(
        sample_ids=tuple(f"{name}/{row}" for row, name in enumerate(names.tolist())),
        text_tokens=raw.text_tokens,
        loss_tokens=np.maximum(1, raw.text_tokens // 2),
        loss_weight=np.ones(len(names)),
        visual_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        grid_thw=grids,
        is_video=raw.frames[owner] > 1,
        visual_keys=np.arange(len(owner), dtype=np.int64),
        merge_size=vision.merge,
    )
    pixels = (raw.width * raw.height * raw.frames)[owner].astype(np.float64)
    return _sized(samples, pixels, vision, description)


def _grids(sizes: NDArray[np.int64], geometry: VisionGeometry) -> NDArray[np.int64]:
    """int64 [V, 3], patch grids of (frames, height, width) [V, 3]."""
    distinct, index = np.unique(sizes, axis=0, return_inverse=True)
    found = [
        image_grid(height, width, geometry) if frames == 1 else video_grid(frames, _SOURCE_FPS, height, width, geometry)
        for frames, height, width in distinct.tolist()
    ]
    return np.array(found, dtype=np.int64)[index.reshape(-1)]


def table_workload(table: MetadataTable, architecture: Architecture, path: str) -> Workload:
    """The samples of a metadata table.

    Where it does not know a file's size, an image is taken as large as its patches, and a video as the 15 frames around
    each of its frames (2 of 30 a second).

    Raises:
        MetadataError: the table has visuals and the model no vision encoder.
    """
    vision = architecture.vision
    if vision is None:
        if len(table.grid_thw):
            raise MetadataError(f"{path} has images or videos, but model {architecture.name} has no vision encoder")
        empty = np.zeros(0)
        return Workload(
            samples=table.batch(), decode_pixels=empty, kept_pixels=empty, values_per_patch=1, description=path
        )
    samples = table.batch()
    known = (table.width != UNKNOWN) & (table.height != UNKNOWN) & (table.frames != UNKNOWN)
    kept = samples.patches * float(vision.patch**2 * vision.temporal_patch)
    guessed = np.where(samples.is_video, kept * 15, kept)
    pixels = np.where(known, table.width * table.height * table.frames, guessed).astype(np.float64)
    return _sized(samples, pixels, vision, path)


def _sized(
    samples: BatchMetadata, decode_pixels: NDArray[np.float64], vision: VisionArchitecture, description: str
) -> Workload:
    frames = np.where(samples.is_video, vision.temporal_patch, 1)
    return Workload(
        samples=samples,
        decode_pixels=decode_pixels,
        kept_pixels=np.asarray(samples.patches * float(vision.patch**2) * frames, dtype=np.float64),
        values_per_patch=3 * vision.temporal_patch * vision.patch**2,
        description=description,
    )
