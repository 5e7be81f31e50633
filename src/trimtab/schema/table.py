"""The metadata table: one row a sample, as columns, with the geometry and the dataset files it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trimtab.errors import MetadataError
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.schema.number_of import number_of

UNKNOWN = -1
"""Stands in integer columns for what is not known."""


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A dataset file a table was made from; a changed file is recognised by it.

    Attributes:
        name: file name without its folder.
        size: bytes.
        rows: records.
        digest: sixteen hex digits over its content (JSON) or footer (Parquet).
    """

    name: str
    size: int
    rows: int
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({number_of(self.rows, 'record')}, {number_of(self.size, 'byte')}, content {self.digest})"


@dataclass(frozen=True, eq=False, kw_only=True)
class MetadataTable:
    """The samples of a dataset as columns: N samples, V visuals (concatenated in sample order).

    Attributes:
        sample_ids: string [N], unique.
        text_tokens, loss_tokens: int64 [N]; see ``SampleMetadata``.
        loss_weight: float64 [N].
        dataset_index: int64 [N], index into ``files``, or UNKNOWN.
        dataset_row: int64 [N], row in that file, or UNKNOWN.
        visual_offsets: int64 [N + 1]; visuals of sample i are rows ``visual_offsets[i]:visual_offsets[i + 1]``.
        is_video: bool [V].
        grid_thw: int64 [V, 3], patches before merging.
        sources: string [V], where each lay when it was scanned.
        width, height, frames, token_offset: int64 [V], or UNKNOWN.
        seconds: float64 [V], or NaN.
        merge_size: patches merged into one token along each spatial axis.
        geometry: what the grids were made for, or None where the file does not say.
        files: the dataset files.
        root: folder or URL the scan was told that relative media paths start from; "" for each file's own.

    Raises:
        MetadataError: there is no sample, a count is negative, a weight is not a number, a grid is not positive or not
            a multiple of ``merge_size``, or a sample id is repeated.
    """

    sample_ids: pa.Array
    text_tokens: NDArray[np.int64]
    loss_tokens: NDArray[np.int64]
    loss_weight: NDArray[np.float64]
    dataset_index: NDArray[np.int64]
    dataset_row: NDArray[np.int64]
    visual_offsets: NDArray[np.int64]
    is_video: NDArray[np.bool_]
    grid_thw: NDArray[np.int64]
    sources: pa.Array
    width: NDArray[np.int64]
    height: NDArray[np.int64]
    frames: NDArray[np.int64]
    token_offset: NDArray[np.int64]
    seconds: NDArray[np.float64]
    merge_size: int
    geometry: VisionGeometry | None = None
    files: tuple[DatasetFile, ...] = ()
    root: str = ""

    def __post_init__(self) -> None:
        _check_samples(self)
        _check_grids(self)

    def __len__(self) -> int:
        return len(self.text_tokens)

    @staticmethod
    def from_samples(
        samples: Sequence[SampleMetadata],
        *,
        geometry: VisionGeometry | None = None,
        merge_size: int = 2,
        files: Sequence[DatasetFile] = (),
        locations: Sequence[tuple[int, int]] | None = None,
        root: str = "",
    ) -> MetadataTable:
        """Turn samples into a table.

        Args:
            samples: in table order.
            geometry: what they were scanned for; it decides the merge size where given.
            merge_size: used where there is no geometry.
            files: the dataset files.
            locations: (file index, row in the file) of each sample.
            root: see the class.

        Raises:
            MetadataError: see the class.
        """
        visuals = [visual for sample in samples for visual in sample.visuals]
        places = np.array(locations or [(UNKNOWN, UNKNOWN)] * len(samples), dtype=np.int64).reshape(-1, 2)
        return MetadataTable(
            sample_ids=pa.array([sample.sample_id for sample in samples], pa.string()),
            text_tokens=_int64(sample.text_tokens for sample in samples),
            loss_tokens=_int64(sample.loss_tokens for sample in samples),
            loss_weight=np.array([sample.loss_weight for sample in samples], dtype=np.float64),
            dataset_index=places[:, 0],
            dataset_row=places[:, 1],
            visual_offsets=np.cumsum([0, *(len(sample.visuals) for sample in samples)], dtype=np.int64),
            is_video=np.array([visual.kind == "video" for visual in visuals], dtype=np.bool_),
            grid_thw=_int64(n for v in visuals for n in (v.grid_t, v.grid_h, v.grid_w)).reshape(-1, 3),
            sources=pa.array([visual.source for visual in visuals], pa.string()),
            width=_int64(_or_unknown(visual.width) for visual in visuals),
            height=_int64(_or_unknown(visual.height) for visual in visuals),
            frames=_int64(_or_unknown(visual.frames) for visual in visuals),
            token_offset=_int64(_or_unknown(visual.token_offset) for visual in visuals),
            seconds=np.array([np.nan if v.seconds is None else v.seconds for v in visuals], dtype=np.float64),
            merge_size=geometry.merge_size if geometry else merge_size,
            geometry=geometry,
            files=tuple(files),
            root=root,
        )

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits, equal for tables whose rows mean the same samples, media and grids."""
        total = hashlib.blake2b(digest_size=8)
        columns = ("dataset_index", "dataset_row", "visual_offsets", "is_video", "grid_thw", "text_tokens")
        for column in (getattr(self, name) for name in columns):
            total.update(np.ascontiguousarray(column).astype("<i8").tobytes())
        for names in (self.sample_ids, self.sources):
            total.update("\0".join(map(str, names.to_pylist())).encode())
        total.update(repr((self.geometry, self.merge_size, self.files)).encode())
        return total.hexdigest()

    def sample(self, row: int) -> SampleMetadata:
        """One sample."""
        start, stop = self.visual_offsets[row : row + 2].tolist()
        return SampleMetadata(
            sample_id=self.sample_ids[row].as_py(),
            text_tokens=int(self.text_tokens[row]),
            loss_tokens=int(self.loss_tokens[row]),
            visuals=tuple(self.visual(index) for index in range(start, stop)),
            loss_weight=float(self.loss_weight[row]),
        )

    def visual(self, index: int) -> Visual:
        """One visual, counted over all samples."""
        grid_t, grid_h, grid_w = self.grid_thw[index].tolist()
        seconds = float(self.seconds[index])
        return Visual(
            kind="video" if self.is_video[index] else "image",
            grid_t=grid_t,
            grid_h=grid_h,
            grid_w=grid_w,
            source=self.sources[index].as_py(),
            width=_or_none(self.width[index]),
            height=_or_none(self.height[index]),
            frames=_or_none(self.frames[index]),
            seconds=None if np.isnan(seconds) else seconds,
            token_offset=_or_none(self.token_offset[index]),
        )

    def batch(self, rows: Sequence[int] | NDArray[np.int64] | None = None) -> BatchMetadata:
        """The samples of these rows, in their order, or all; a row given twice shares its visuals' keys."""
        chosen = np.arange(len(self), dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
        counts = np.diff(self.visual_offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        visuals = np.repeat(self.visual_offsets[chosen] - offsets[:-1], counts) + np.arange(offsets[-1], dtype=np.int64)
        return BatchMetadata(
            sample_ids=tuple(self.sample_ids.take(pa.array(chosen)).to_pylist()),
            text_tokens=self.text_tokens[chosen],
            loss_tokens=self.loss_tokens[chosen],
            loss_weight=self.loss_weight[chosen],
            visual_offsets=offsets,
            grid_thw=self.grid_thw[visuals],
            is_video=self.is_video[visuals],
            visual_keys=visuals,
            merge_size=self.merge_size,
        )

    def check_geometry(self, geometry: VisionGeometry) -> None:
        """Refuse a table made for another geometry; one that names none is taken as made for this one.

        Raises:
            MetadataError: names the fields that differ.
        """
        differing = self.geometry.differences(geometry) if self.geometry else {}
        if differing:
            listed = ", ".join(f"{name} {mine!r} (model: {other!r})" for name, (mine, other) in differing.items())
            raise MetadataError(f"the table was made for another model or limits: {listed}; scan the dataset again")
        if self.merge_size != geometry.merge_size:
            raise MetadataError(
                f"the table's merge size is {self.merge_size}, the model's is {geometry.merge_size}; "
                "scan the dataset again"
            )

    def check_files(self, files: Sequence[DatasetFile]) -> None:
        """Refuse dataset files that are not those the table was made from.

        Raises:
            MetadataError: names the first file that differs.
        """
        if len(files) != len(self.files):
            raise MetadataError(
                f"the table was made from {number_of(len(self.files), 'dataset file')}, given {len(files)}; "
                "give the same files"
            )
        for scanned, given in zip(self.files, files, strict=True):
            if scanned != given:
                raise MetadataError(f"dataset file changed since the scan: {scanned} is now {given}; scan it again")


def _int64(values: Any) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)


def _or_unknown(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _or_none(value: np.int64) -> int | None:
    return None if value == UNKNOWN else int(value)


def _check_samples(table: MetadataTable) -> None:
    if len(table) == 0:
        raise MetadataError("the table has no sample; give one with some rows")
    for name in ("text_tokens", "loss_tokens"):
        values = getattr(table, name)
        if (row := _first(values < 0)) is not None:
            raise MetadataError(f"{_named(table, row)}: {name}={values[row]} is negative; correct it", row=row)
    weights = table.loss_weight
    if (row := _first(~(np.isfinite(weights) & (weights >= 0)))) is not None:
        raise MetadataError(
            f"{_named(table, row)}: loss_weight={weights[row]} must be a number of at least 0; correct it", row=row
        )
    if len(table.sample_ids.unique()) < len(table):
        counts = table.sample_ids.value_counts().to_pylist()
        repeated = next(entry["values"] for entry in counts if entry["counts"] > 1)
        row = table.sample_ids.index(repeated, table.sample_ids.index(repeated).as_py() + 1).as_py()
        raise MetadataError(f"sample id {repeated!r} is repeated in row {row}; give every sample its own", row=row)


def _check_grids(table: MetadataTable) -> None:
    grids = table.grid_thw
    bad = (grids < 1).any(axis=1) | (grids[:, 1:] % table.merge_size != 0).any(axis=1)
    if (visual := _first(bad)) is not None:
        row = int(np.searchsorted(table.visual_offsets, visual, side="right")) - 1
        raise MetadataError(
            f"{_named(table, row)}: grid {tuple(grids[visual].tolist())} must be positive and its height and width "
            f"multiples of the merge size {table.merge_size}; scan the dataset again for this model",
            row=row,
        )


def _first(bad: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None


def _named(table: MetadataTable, row: int) -> str:
    return f"sample {table.sample_ids[row].as_py()!r} (row {row})"
