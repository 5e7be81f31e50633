"""A tensor that is known but not loaded: which rows of which samples' tensors it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.errors import MetadataError
from trimtab.loader.selection import Selection, selected_rows
from trimtab.schema.setting_checks import check_whole

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True, eq=False, kw_only=True)
class Placeholder:
    """P pieces, one behind the other along the first axis; piece p is rows ``start[p]:stop[p]`` of a sample's tensor.

    It takes, repeats, concatenates and slices as the real tensor would, and costs 24 bytes a piece whatever the tensor.

    Attributes:
        name: of the tensor in a batch, e.g. "pixel_values".
        dtype: of the tensor.
        row_shape: shape of one row.
        table: digest of the metadata table (``MetadataTable.digest``) whose rows ``sample`` counts.
        sample: int64 [P], row of the metadata table of each piece's sample.
        start, stop: int64 [P], rows of that sample's tensor.
    """

    name: str
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    table: str
    sample: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def pieces(self) -> int:
        """P."""
        return len(self.sample)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the real tensor."""
        return (len(self), *self.row_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the real tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def spec_bytes(self) -> int:
        """Bytes of this description."""
        return self.sample.nbytes + self.start.nbytes + self.stop.nbytes

    def __len__(self) -> int:
        return int((self.stop - self.start).sum())

    def take(self, pieces: Selection) -> Placeholder:
        """The given pieces, in that order; they may repeat. A mask takes those where it is true.

        Raises:
            MetadataError: a place is a fraction or outside, or the mask has another length.
        """
        chosen = selected_rows(pieces, self.pieces, "pieces")
        return replace(self, sample=self.sample[chosen], start=self.start[chosen], stop=self.stop[chosen])

    def repeat(self, times: int) -> Placeholder:
        """Every piece ``times`` times in a row, as replies to one prompt are laid out.

        Raises:
            SettingsError: ``times`` is negative or no whole number.
        """
        check_whole("times", times, 0)
        return self.take(np.repeat(np.arange(self.pieces), times))

    def slice(self, start: int, stop: int) -> Placeholder:
        """Rows ``start:stop`` of the whole, as Python slices count.

        Pieces outside are dropped, those at the border are cut.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        ends = np.cumsum(self.stop - self.start)
        begins = ends - (self.stop - self.start)
        first = self.start + np.clip(start - begins, 0, None)
        last = self.stop - np.clip(ends - stop, 0, None)
        kept = first < last
        return replace(self, sample=self.sample[kept], start=first[kept], stop=last[kept])

    def as_fake(self, mode: FakeTensorMode | None = None) -> torch.Tensor:
        """A FakeTensor of shape and dtype: it has no values and cannot be pickled; see ``torch._subclasses``."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with mode or FakeTensorMode():
            return torch.empty(self.shape, dtype=self.dtype)


def concatenate(placeholders: Sequence[Placeholder]) -> Placeholder:
    """Placeholders of one tensor, one behind the other.

    Raises:
        MetadataError: there are none, or they differ in name, dtype, shape of a row, or table.
    """
    kinds = {(p.name, p.dtype, p.row_shape) for p in placeholders}
    if len(kinds) != 1:
        listed = "; ".join(f"{name} {dtype} {shape}" for name, dtype, shape in sorted(kinds, key=repr)) or "none"
        raise MetadataError(f"only placeholders of one tensor can be concatenated, given: {listed}")
    check_one_table([p.table for p in placeholders])
    return replace(
        placeholders[0],
        sample=np.concatenate([p.sample for p in placeholders]),
        start=np.concatenate([p.start for p in placeholders]),
        stop=np.concatenate([p.stop for p in placeholders]),
    )


def check_one_table(tables: Sequence[str]) -> None:
    """Refuse to mix rows of different tables: their numbers would mean other samples.

    Args:
        tables: digests.

    Raises:
        MetadataError: they differ.
    """
    if len(set(tables)) > 1:
        raise MetadataError(
            f"these are of different metadata tables (digests {', '.join(sorted(set(tables)))}), so their rows mean "
            "different samples; scan the datasets into one table to mix them"
        )
