"""A step's batch as its metadata and placeholders: what a controller schedules instead of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.errors import MetadataError
from trimtab.loader.placeholder import Placeholder, check_one_table
from trimtab.loader.selection import Selection, selected_rows
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.setting_checks import check_whole

PIXELS, TOKENS, LOSS_WEIGHTS = "pixel_values", "input_ids", "loss_weights"


@dataclass(frozen=True, eq=False, kw_only=True)
class ProxyBatch:
    """N samples (or replies to them) whose tensors are not loaded.

    Attributes:
        step: the step it was dealt for.
        table: digest of the metadata table (``MetadataTable.digest``) whose rows it holds.
        rows: int64 [N], rows of the metadata table.
        reply: int64 [N], which reply to its prompt each is; 0 before ``repeat``.
        metadata: ids, token counts and grids; replies to one prompt share their visuals' keys.
        patch_values: numbers in one patch.
    """

    step: int
    table: str
    rows: NDArray[np.int64]
    reply: NDArray[np.int64]
    metadata: BatchMetadata
    patch_values: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Id of each sample."""
        return self.metadata.sample_ids

    @property
    def grid_thw(self) -> torch.Tensor:
        """int64 [V, 3], patch grids of all visuals: metadata, so it is real."""
        return torch.from_numpy(self.metadata.grid_thw)

    @property
    def tensors(self) -> dict[str, Placeholder]:
        """The batch's tensors by name, samples one behind the other.

        ``pixel_values`` float32 [patches, patch_values], ``input_ids`` int64 [tokens], ``loss_weights`` float32
        [tokens].
        """
        patches = np.concatenate([[0], np.cumsum(self.metadata.patches, dtype=np.int64)])
        per_sample = np.diff(patches[self.metadata.visual_offsets])
        return {
            PIXELS: self._placeholder(PIXELS, torch.float32, (self.patch_values,), per_sample),
            TOKENS: self._placeholder(TOKENS, torch.int64, (), self.metadata.tokens),
            LOSS_WEIGHTS: self._placeholder(LOSS_WEIGHTS, torch.float32, (), self.metadata.tokens),
        }

    def take(self, samples: Selection) -> ProxyBatch:
        """The given samples, in that order; they may repeat. A mask takes those where it is true.

        Raises:
            MetadataError: a place is a fraction or outside, or the mask has another length.
        """
        chosen = selected_rows(samples, len(self), "samples")
        return replace(self, rows=self.rows[chosen], reply=self.reply[chosen], metadata=self.metadata.take(chosen))

    def repeat(self, replies: int) -> ProxyBatch:
        """Every sample ``replies`` times in a row, counted in ``reply``.

        Raises:
            SettingsError: ``replies`` is negative or no whole number.
        """
        check_whole("replies", replies, 0)
        repeated = self.take(np.repeat(np.arange(len(self)), replies))
        return replace(repeated, reply=np.tile(np.arange(replies, dtype=np.int64), len(self)))

    def slice(self, start: int, stop: int) -> ProxyBatch:
        """Samples ``start:stop``, as Python slices count."""
        return self.take(np.arange(len(self))[start:stop])

    def split(self, parts: int) -> list[ProxyBatch]:
        """``parts`` runs of samples whose numbers differ by at most one.

        Raises:
            SettingsError: ``parts`` is below 1 or no whole number.
        """
        check_whole("parts", parts, 1)
        return [self.take(run) for run in np.array_split(np.arange(len(self)), parts)]

    def _placeholder(
        self, name: str, dtype: torch.dtype, row_shape: tuple[int, ...], lengths: NDArray[np.int64]
    ) -> Placeholder:
        return Placeholder(
            name=name,
            dtype=dtype,
            row_shape=row_shape,
            table=self.table,
            sample=self.rows,
            start=np.zeros(len(self), dtype=np.int64),
            stop=np.asarray(lengths, dtype=np.int64),
        )


def concatenate_batches(batches: Sequence[ProxyBatch]) -> ProxyBatch:
    """Batches one behind the other, under the first one's step.

    Raises:
        MetadataError: there are none, or they were made for different models or from different tables.
    """
    kinds = {(batch.patch_values, batch.metadata.merge_size) for batch in batches}
    if len(kinds) != 1:
        raise MetadataError(
            f"only batches of one model can be concatenated, given {len(batches)} with (values of a patch, merge size) "
            f"{sorted(kinds)}"
        )
    check_one_table([batch.table for batch in batches])
    parts = [batch.metadata for batch in batches]
    visuals = np.concatenate([[0], *(np.diff(part.visual_offsets) for part in parts)])
    columns = ("text_tokens", "loss_tokens", "loss_weight", "grid_thw", "is_video", "visual_keys")
    return replace(
        batches[0],
        rows=np.concatenate([batch.rows for batch in batches]),
        reply=np.concatenate([batch.reply for batch in batches]),
        metadata=BatchMetadata(
            sample_ids=tuple(sample for part in parts for sample in part.sample_ids),
            visual_offsets=np.cumsum(visuals, dtype=np.int64),
            merge_size=parts[0].merge_size,
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
        ),
    )
