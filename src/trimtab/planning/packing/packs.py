"""Samples grouped into packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Packs:
    """P packs of S samples.

    Attributes:
        rows: int64 [S], rows of the samples, pack by pack.
        offsets: int64 [P + 1]; pack p holds ``rows[offsets[p]:offsets[p + 1]]``.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> NDArray[np.int64]:
        """Rows of one pack."""
        return self.rows[self.offsets[pack] : self.offsets[pack + 1]]

    @property
    def counts(self) -> NDArray[np.int64]:
        """int64 [P], samples in each pack."""
        return np.diff(self.offsets)

    def sums(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [P, ...], total of ``loads`` (int64 [N, ...]) in each pack."""
        return self._reduce(np.add, loads)

    def largest(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [P, ...], largest of ``loads`` (int64 [N, ...], not negative) in each pack."""
        return self._reduce(np.maximum, loads)

    def _reduce(self, combine: np.ufunc, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        result = np.zeros((len(self), *loads.shape[1:]), dtype=np.int64)
        held = np.flatnonzero(self.counts)  # reduceat repeats a neighbour's value for an empty pack
        if len(held):
            result[held] = combine.reduceat(loads[self.rows], self.offsets[:-1][held], axis=0)
        return result

    def take(self, order: NDArray[np.int64]) -> Packs:
        """The packs ``order`` (int64), in that order."""
        counts = self.counts[order]
        offsets = _offsets(counts)
        index = np.repeat(self.offsets[:-1][order] - offsets[:-1], counts) + np.arange(offsets[-1], dtype=np.int64)
        return Packs(rows=self.rows[index], offsets=offsets)

    def relabel(self, rows: NDArray[np.int64]) -> Packs:
        """The same packs, row r renamed to ``rows[r]``."""
        return Packs(rows=rows[self.rows], offsets=self.offsets)

    @staticmethod
    def from_labels(pack_of: NDArray[np.int64], packs: int) -> Packs:
        """Packs from the pack of each row (int64 [N], below ``packs``)."""
        counts = np.bincount(pack_of, minlength=packs).astype(np.int64)
        return Packs(rows=np.argsort(pack_of, kind="stable"), offsets=_offsets(counts))

    @staticmethod
    def joined(parts: Sequence[Packs]) -> Packs:
        """All packs of ``parts``, in order."""
        if not parts:
            return Packs(rows=np.zeros(0, dtype=np.int64), offsets=np.zeros(1, dtype=np.int64))
        return Packs(
            rows=np.concatenate([part.rows for part in parts]),
            offsets=_offsets(np.concatenate([part.counts for part in parts])),
        )


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
