"""Contiguous partition with the smallest largest part, exactly, by dynamic programming."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def least_largest(cost: NDArray[np.float64]) -> tuple[float, tuple[int, ...]]:
    """Cut L items into P runs, none empty, so that the costliest run costs least; then the squares of costs.

    Args:
        cost: float64 [P, L + 1, L + 1], of items i to j as run p; infinite where that is not allowed.

    Returns:
        The largest cost, infinite where no partition is allowed, and its bounds [P + 1], empty in that case.
    """
    largest = float(_best(cost, np.maximum)[0, 0])
    if not np.isfinite(largest):
        return largest, ()
    allowed = np.where(cost <= largest, np.square(cost), np.inf)
    rest = _best(allowed, np.add)
    bounds = [0]
    for part in range(len(cost)):
        start = bounds[-1]
        bounds.append(start + 1 + int((allowed[part, start, start + 1 :] + rest[part + 1, start + 1 :]).argmin()))
    return largest, tuple(bounds)


def _best(cost: NDArray[np.float64], join: np.ufunc) -> NDArray[np.float64]:
    """[P + 1, L + 1], the least of runs p to P - 1 over the items from i."""
    parts, items = len(cost), cost.shape[1] - 1
    rest = np.full((parts + 1, items + 1), np.inf)
    rest[parts, items] = 0.0
    for part in reversed(range(parts)):
        for start in range(items):
            rest[part, start] = join(cost[part, start, start + 1 :], rest[part + 1, start + 1 :]).min()
    return rest


def run_sums(weights: NDArray[np.int64], parts: int) -> NDArray[np.float64]:
    """float64 [P, L + 1, L + 1], the cost of every run where it is the sum of its items' weights."""
    summed = np.concatenate([[0], np.cumsum(weights)]).astype(np.float64)
    return np.broadcast_to(summed[None, :] - summed[:, None], (parts, len(summed), len(summed)))
