"""What is known of a sample before a pixel is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MetadataError

VisualKind = Literal["image", "video"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visual:
    """One image or video of a sample.

    Attributes:
        kind: "image" or "video".
        grid_t, grid_h, grid_w: patch grid before merging; ``grid_t`` counts temporal patches ("frames" of the encoder).
        source: URI of the file: a path, an fsspec URL, ``shard.tar#member`` or ``file.parquet#row/column``.
        width, height: pixels as displayed (after rotation), or None where not probed.
        frames: frames the container declares (1 for an image), or None.
        seconds: duration, or None for an image.
        token_offset: position of its first placeholder token in the sample, or None.
    """

    kind: VisualKind
    grid_t: int
    grid_h: int
    grid_w: int
    source: str
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    seconds: float | None = None
    token_offset: int | None = None

    @property
    def patches(self) -> int:
        """Patches before merging."""
        return self.grid_t * self.grid_h * self.grid_w


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetadata:
    """One sample: its text, loss and visual sizes.

    Attributes:
        sample_id: unique in its table.
        text_tokens: tokens that are not visual placeholders.
        loss_tokens: tokens whose prediction enters the loss.
        visuals: its images and videos, in placeholder order.
        loss_weight: weight of each of its loss tokens.
    """

    sample_id: str
    text_tokens: int
    loss_tokens: int
    visuals: tuple[Visual, ...] = ()
    loss_weight: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchMetadata:
    """The samples of one step as columns: N samples, V visuals (concatenated in sample order).

    Attributes:
        sample_ids: [N].
        text_tokens: int64 [N], tokens that are not visual placeholders.
        loss_tokens: int64 [N].
        loss_weight: float64 [N].
        visual_offsets: int64 [N + 1]; visuals of sample i are rows ``visual_offsets[i]:visual_offsets[i + 1]``.
        grid_thw: int64 [V, 3], patches before merging.
        is_video: bool [V].
        visual_keys: int64 [V]; visuals of equal key are one encoding shared by several samples (replies to one prompt).
        merge_size: patches merged into one token along each spatial axis.
    """

    sample_ids: tuple[str, ...]
    text_tokens: NDArray[np.int64]
    loss_tokens: NDArray[np.int64]
    loss_weight: NDArray[np.float64]
    visual_offsets: NDArray[np.int64]
    grid_thw: NDArray[np.int64]
    is_video: NDArray[np.bool_]
    visual_keys: NDArray[np.int64]
    merge_size: int

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def num_visuals(self) -> int:
        """V."""
        return len(self.grid_thw)

    @cached_property
    def patches(self) -> NDArray[np.int64]:
        """int64 [V], patches before merging."""
        return self.grid_thw[:, 0] * self.grid_thw[:, 1] * self.grid_thw[:, 2]

    @cached_property
    def visual_tokens(self) -> NDArray[np.int64]:
        """int64 [V], language-model tokens of each visual."""
        return self.patches // self.merge_size**2

    @cached_property
    def sample_of_visual(self) -> NDArray[np.int64]:
        """int64 [V], row of the sample each visual belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.visual_offsets))

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """int64 [N], language-model tokens of each sample: text plus visual placeholders."""
        visual = np.concatenate([[0], np.cumsum(self.visual_tokens, dtype=np.int64)])
        return np.asarray(self.text_tokens + np.diff(visual[self.visual_offsets]))

    @staticmethod
    def from_samples(samples: Sequence[SampleMetadata], merge_size: int) -> BatchMetadata:
        """Turn samples into columns.

        Raises:
            MetadataError: a count is negative, or a grid is not a positive multiple of ``merge_size``.
        """
        visuals = [visual for sample in samples for visual in sample.visuals]
        for sample in samples:
            _check_sample(sample, merge_size)
        grids = np.array([(v.grid_t, v.grid_h, v.grid_w) for v in visuals], dtype=np.int64).reshape(-1, 3)
        counts = np.array([len(sample.visuals) for sample in samples], dtype=np.int64)
        return BatchMetadata(
            sample_ids=tuple(sample.sample_id for sample in samples),
            text_tokens=np.array([sample.text_tokens for sample in samples], dtype=np.int64),
            loss_tokens=np.array([sample.loss_tokens for sample in samples], dtype=np.int64),
            loss_weight=np.array([sample.loss_weight for sample in samples], dtype=np.float64),
            visual_offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
            grid_thw=grids,
            is_video=np.array([visual.kind == "video" for visual in visuals], dtype=np.bool_),
            visual_keys=np.arange(len(visuals), dtype=np.int64),
            merge_size=merge_size,
        )

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> BatchMetadata:
        """The batch of the given sample rows, in that order; rows may repeat (replies share their visuals' keys)."""
        rows = np.asarray(rows, dtype=np.int64)
        counts = np.diff(self.visual_offsets)[rows]
        starts = self.visual_offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        visuals = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1], dtype=np.int64)
        return BatchMetadata(
            sample_ids=tuple(self.sample_ids[row] for row in rows.tolist()),
            text_tokens=self.text_tokens[rows],
            loss_tokens=self.loss_tokens[rows],
            loss_weight=self.loss_weight[rows],
            visual_offsets=offsets,
            grid_thw=self.grid_thw[visuals],
            is_video=self.is_video[visuals],
            visual_keys=self.visual_keys[visuals],
            merge_size=self.merge_size,
        )


def _check_sample(sample: SampleMetadata, merge_size: int) -> None:
    if sample.text_tokens < 0 or sample.loss_tokens < 0:
        raise MetadataError(
            f"sample {sample.sample_id}: text_tokens={sample.text_tokens} and loss_tokens={sample.loss_tokens} "
            "must not be negative; scan the dataset again"
        )
    for index, visual in enumerate(sample.visuals):
        grid = (visual.grid_t, visual.grid_h, visual.grid_w)
        if min(grid) < 1 or visual.grid_h % merge_size or visual.grid_w % merge_size:
            raise MetadataError(
                f"sample {sample.sample_id}, visual {index}: grid {grid} must be positive and its height and width "
                f"multiples of the merge size {merge_size}; scan the dataset again for this model"
            )
