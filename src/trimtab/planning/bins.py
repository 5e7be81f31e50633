"""Bins to fill: a rank, or one micro-batch of a rank, with its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Bins:
    """B bins and the items they compete for (N items, longest first).

    Attributes:
        cost: int64 [N], descending.
        tokens: int64 [N].
        count: B.
        max_tokens: hard cap on the tokens of a bin, or None.
        equal_counts: bins hold N / B items, give or take one.
        start: int64 [B], load of each bin before the first item, or None for zeros.
        held: int64 [B], tokens each bin holds before the first item, or None for zeros.
        slowness: float64 [B], time per unit of cost, or None where all bins are equally fast.
    """

    cost: NDArray[np.int64]
    tokens: NDArray[np.int64]
    count: int
    max_tokens: int | None = None
    equal_counts: bool = False
    start: NDArray[np.int64] | None = None
    held: NDArray[np.int64] | None = None
    slowness: NDArray[np.float64] | None = None

    def times(self, bin_of: NDArray[np.int64]) -> NDArray[np.int64] | NDArray[np.float64]:
        """Time of each bin [B]: start plus its items' cost by its slowness."""
        load = np.zeros(self.count, dtype=np.int64)
        np.add.at(load, bin_of, self.cost)
        start = np.zeros(self.count, dtype=np.int64) if self.start is None else self.start
        return start + (load if self.slowness is None else load * self.slowness)


def longest_first(cost: NDArray[np.int64], tokens: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Row order by descending cost, then tokens, then row.

    With it input order is moot, since items equal in all that counts are interchangeable.

    Args:
        cost: int64 [N].
        tokens: int64 [N], or None where no cap makes them count.
    """
    order = np.argsort(-cost, kind="stable")
    if tokens is None:
        return order
    ties = cost[order[1:]] == cost[order[:-1]]
    if (tokens[order[1:]] > tokens[order[:-1]])[ties].any():
        return np.lexsort((-tokens, -cost))
    return order
