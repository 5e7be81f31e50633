"""LoongForge's data-parallel balance, as published (baidu-baige/LoongForge, documentation and code of August 2026).

It leaves a batch alone when the imbalance is below 0.2 or one sample costs more than the mean. Otherwise: longest
first onto the cheapest rank whose length stays within 1.2 of the mean length, the cheapest rank where none does; then
at most 20 moves or swaps between the costliest and the cheapest rank, of the extreme items only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import longest_first
from trimtab.planning.peers.as_is import contiguous_ranks
from trimtab.planning.problem import Assignment, PartitionProblem

HONOURS = frozenset({"start"})

THRESHOLD = 0.2
LENGTH_RATIO = 1.2
_MAX_ROUNDS = 20
_CLOSE_ENOUGH = 0.05


def solve(problem: PartitionProblem) -> Assignment:
    """Partition by the samples' costs, or leave them where they are where LoongForge would skip the batch."""
    start = np.zeros(problem.ranks, dtype=np.int64) if problem.start_ns is None else problem.start_ns
    at_first = contiguous_ranks(len(problem), problem.ranks) if problem.at_first is None else problem.at_first
    rank = rebalance(problem.cost_ns, problem.tokens, at_first, start, LENGTH_RATIO)
    return Assignment(rank=rank, micro_batch=np.zeros_like(rank))


def rebalance(
    cost: NDArray[np.int64],
    length: NDArray[np.int64],
    rank: NDArray[np.int64],
    start: NDArray[np.int64],
    length_ratio: float | None,
) -> NDArray[np.int64]:
    """One balancing decision.

    Args:
        cost: int64 [N].
        length: int64 [N], what the length ratio limits.
        rank: int64 [N], where the items are.
        start: int64 [R], load from earlier micro-batches.
        length_ratio: cap on a rank's length over the mean, or None.

    Returns:
        int64 [N], where they go; ``rank`` itself where the batch is left alone.
    """
    load = start.copy()
    np.add.at(load, rank, cost)
    mean = load.mean()
    if mean <= 0 or cost.max(initial=0) > mean or load.max() / mean - 1 < THRESHOLD:
        return rank
    cap = None if length_ratio is None else length_ratio * float(length.sum()) / len(start)
    loads = _Loads(cost.tolist(), length.tolist(), start.tolist(), cap)
    for item in longest_first(cost, np.zeros_like(cost)).tolist():
        loads.place(item)
    for _ in range(_MAX_ROUNDS):
        if not loads.refine():
            break
    result = np.empty_like(rank)
    for index, items in enumerate(loads.items):
        result[items] = index
    return result


@dataclass
class _Loads:
    """Ranks being filled."""

    cost: list[int]
    length: list[int]
    load: list[int]
    cap: float | None
    items: list[list[int]] = field(init=False)
    filled: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.items = [[] for _ in self.load]
        self.filled = [0] * len(self.load)

    def place(self, item: int) -> None:
        """Onto the cheapest rank with room, or the cheapest of all: the published cap is soft."""
        by_load = sorted(range(len(self.load)), key=self.load.__getitem__)
        fitting = (index for index in by_load if self._fits(index, self.length[item]))
        self._add(next(fitting, by_load[0]), item)

    def refine(self) -> bool:
        """Move the costliest item of the costliest rank, or swap it for the cheapest rank's cheapest item."""
        high = max(range(len(self.load)), key=self.load.__getitem__)
        low = min(range(len(self.load)), key=self.load.__getitem__)
        spread = self.load[high] - self.load[low]
        if not self.items[high] or not self.items[low] or spread / max(self.load[low], 1e-6) < _CLOSE_ENOUGH:
            return False
        given = max(self.items[high], key=self.cost.__getitem__)
        returned = min(self.items[low], key=self.cost.__getitem__)
        options = [(self._spread_after(high, low, given, back), back) for back in (None, returned)]
        legal = [(after, back) for after, back in options if after is not None]
        if not legal:
            return False
        after, back = min(legal, key=_spread_of)
        if after >= spread:
            return False
        self._remove(high, given)
        self._add(low, given)
        if back is not None:
            self._remove(low, back)
            self._add(high, back)
        return True

    def _spread_after(self, high: int, low: int, given: int, returned: int | None) -> int | None:
        """Largest minus smallest load after the exchange, or None where it passes the length cap."""
        cost_back = 0 if returned is None else self.cost[returned]
        length_back = 0 if returned is None else self.length[returned]
        if not self._fits(low, self.length[given] - length_back) or not self._fits(
            high, length_back - self.length[given]
        ):
            return None
        load = list(self.load)
        load[high] += cost_back - self.cost[given]
        load[low] += self.cost[given] - cost_back
        return max(load) - min(load)

    def _fits(self, index: int, length: int) -> bool:
        return self.cap is None or self.filled[index] + length <= self.cap

    def _add(self, index: int, item: int) -> None:
        self.items[index].append(item)
        self.load[index] += self.cost[item]
        self.filled[index] += self.length[item]

    def _remove(self, index: int, item: int) -> None:
        self.items[index].remove(item)
        self.load[index] -= self.cost[item]
        self.filled[index] -= self.length[item]


def _spread_of(option: tuple[int, int | None]) -> int:
    return option[0]
