"""Who sends which rows to whom: the data of one exchange between ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalRoute:
    """One rank's part of a route.

    Attributes:
        send_rows: int64 [S], local rows in the order they go on the wire (grouped by destination rank).
        send_splits: rows for each rank; sums to S.
        receive_splits: rows from each rank; sums to T.
        receive_rows: int64 [T], where each received row belongs in the result.
        result_rows: rows of the result on this rank.
    """

    send_rows: NDArray[np.int64]
    send_splits: tuple[int, ...]
    receive_splits: tuple[int, ...]
    receive_rows: NDArray[np.int64]
    result_rows: int


@dataclass(frozen=True, eq=False, kw_only=True)
class RoutePlan:
    """Blocks of rows moving between ranks (B blocks, R ranks).

    Block b is ``rows[b]`` rows that lie at ``source_start[b]`` of ``source_rank[b]``'s tensor and belong at
    ``destination_start[b]`` of ``destination_rank[b]``'s. A source row may appear in several blocks (copies).

    Attributes:
        ranks: R.
        rows, source_rank, source_start, destination_rank, destination_start: int64 [B].
        source_rows, destination_rows: int64 [R], length of each rank's tensor before and after.
    """

    ranks: int
    rows: NDArray[np.int64]
    source_rank: NDArray[np.int64]
    source_start: NDArray[np.int64]
    destination_rank: NDArray[np.int64]
    destination_start: NDArray[np.int64]
    source_rows: NDArray[np.int64]
    destination_rows: NDArray[np.int64]

    def inverse(self) -> RoutePlan:
        """The way back; where the way out copied a row, the way back sums the copies."""
        return RoutePlan(
            ranks=self.ranks,
            rows=self.rows,
            source_rank=self.destination_rank,
            source_start=self.destination_start,
            destination_rank=self.source_rank,
            destination_start=self.source_start,
            source_rows=self.destination_rows,
            destination_rows=self.source_rows,
        )

    def local(self, rank: int) -> LocalRoute:
        """What ``rank`` sends and receives. Both ends order the rows between two ranks by block."""
        sent = np.flatnonzero(self.source_rank == rank)
        received = np.flatnonzero(self.destination_rank == rank)
        sent = sent[np.argsort(self.destination_rank[sent], kind="stable")]
        received = received[np.argsort(self.source_rank[received], kind="stable")]
        return LocalRoute(
            send_rows=_expand(self.source_start[sent], self.rows[sent]),
            send_splits=_splits(self.destination_rank[sent], self.rows[sent], self.ranks),
            receive_splits=_splits(self.source_rank[received], self.rows[received], self.ranks),
            receive_rows=_expand(self.destination_start[received], self.rows[received]),
            result_rows=int(self.destination_rows[rank]),
        )

    @property
    def moved_rows(self) -> int:
        """Rows that change rank."""
        return int(self.rows[self.source_rank != self.destination_rank].sum())


def _expand(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


def _splits(peers: NDArray[np.int64], rows: NDArray[np.int64], ranks: int) -> tuple[int, ...]:
    return tuple(np.bincount(peers, weights=rows, minlength=ranks).astype(np.int64).tolist())
