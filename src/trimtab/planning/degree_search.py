"""The search for degrees: shard as little as evens the ranks.

A threshold on the time of a single sample gives every sample the smallest degree that keeps below it; thresholds are
lowered until the placement is even. What is missing is won by raising the largest sample of the slowest rank, then by
changing single degrees, and what was sharded in vain is taken back, most bytes first. All steps are counted, none is
timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.node_placement import NodePlacer, Placement

# Longest time of a sample in percent of the bound.
_THRESHOLDS = (100, 80, 64, 50, 40, 32, 25, 20, 16, 12, 10, 8, 6, 4)
_ROUNDS = 20
# Placements tried to raise, change and lower degrees: so many samples over all tries, within limits.
_SAMPLES_RAISED = 2_000
_SAMPLES_LOWERED = 4_000
_SAMPLES_CHANGED = 2_000
_FEWEST_TRIES = 4
_MOST_TRIES = 64


@dataclass
class DegreeSearch:
    """Candidates of one problem and the best so far (N samples, D degrees).

    Attributes:
        placer: places samples once their degrees are chosen.
        feasible: bool [N, D], degrees at which a sample fits the caps.
        bound: time no plan can beat, nanoseconds.
        tolerance: plans this close to the fastest count as fast; of them the one with fewest bytes is taken.
    """

    placer: NodePlacer
    feasible: NDArray[np.bool_]
    bound: int
    tolerance: float

    def __post_init__(self) -> None:
        self._best: Placement | None = None
        self._fastest_offer: int | None = None
        self._found: list[Placement] = []

    def offer(self, candidate: Placement) -> None:
        """Take a plan of another strategy as a candidate; the result is never slower."""
        self._keep(candidate)
        offers = [candidate.slowest_ns, *([] if self._fastest_offer is None else [self._fastest_offer])]
        self._fastest_offer = min(offers)

    def offer_uniform(self, index: int, rounds: int) -> None:
        """Take all samples at one degree as a candidate, unless that cannot come near the best."""
        cost, degree = self.placer.sharding.cost_ns[:, index], int(self.placer.degrees[index])
        least = max(-(-int(cost.sum()) * degree // self.placer.ranks), int(cost.max(initial=0)))
        if self._best is not None and least > self._best.slowest_ns * (1 + self.tolerance):
            return
        found = self.placer.place(np.full(len(cost), index, dtype=np.int64), rounds)
        if found is not None:
            self.offer(found)

    def run(self) -> Placement | None:
        """The plan with fewest bytes among those as fast as the fastest; None where nothing fits the caps."""
        if self._best is None or not self._good_enough() or self._best.sent_bytes:
            self._lower_thresholds()
        if not self._good_enough():
            self._raise_degrees()
        if self._best is None:
            return None
        if not self._good_enough():
            self._change_one_by_one(self._best)
        self._lower_degrees(self._fewest_bytes())
        return self._fewest_bytes()

    def _good_enough(self) -> bool:
        return self._best is not None and self._best.slowest_ns <= self.bound * (1 + self.tolerance)

    def _keep(self, candidate: Placement) -> None:
        self._found.append(candidate)
        if self._best is None or candidate.slowest_ns < self._best.slowest_ns:
            self._best = candidate

    def _limit(self) -> float:
        """Slowest time that still counts as fast: near the fastest, and never above a plan that was offered."""
        if self._best is None:
            return np.inf
        near = self._best.slowest_ns * (1 + self.tolerance)
        return near if self._fastest_offer is None else min(near, self._fastest_offer)

    def _fewest_bytes(self) -> Placement:
        limit = self._limit()
        fast = [each for each in self._found if each.slowest_ns <= limit]
        return min(fast, key=lambda each: (each.sent_bytes, each.slowest_ns))

    def _lower_thresholds(self) -> None:
        cost = np.where(self.feasible, self.placer.sharding.cost_ns, np.iinfo(np.int64).max)
        fastest = cost.argmin(axis=1)
        before: NDArray[np.int64] | None = None
        for percent in _THRESHOLDS:
            below = cost <= self.bound * percent // 100
            column = np.where(below.any(axis=1), below.argmax(axis=1), fastest)
            if before is not None and (column == before).all():
                continue
            before = column
            found = self.placer.place(column, _ROUNDS, self._limit())
            if found is not None:
                self._keep(found)
                if found.slowest_ns <= self.bound * (1 + self.tolerance):
                    return

    def _tries(self, samples: int) -> int:
        return int(np.clip(samples // max(1, len(self.feasible)), _FEWEST_TRIES, _MOST_TRIES))

    def _raise_degrees(self) -> None:
        """Give the largest sample of the slowest rank the next degree, again and again."""
        now = self._best
        for _ in range(self._tries(_SAMPLES_RAISED)):
            if now is None:
                return
            micro_batch, rank = np.unravel_index(int(now.load.argmax()), now.load.shape)
            degree = self.placer.degrees[now.column]
            there = (now.micro_batch == micro_batch) & (now.rank <= rank) & (rank < now.rank + degree)
            rows = np.flatnonzero(there & (now.column < len(self.placer.degrees) - 1))
            if not len(rows):
                return
            column = now.column.copy()
            column[rows[self.placer.sharding.cost_ns[rows, now.column[rows]].argmax()]] += 1
            now = self.placer.place(column, _ROUNDS)
            if now is not None:
                self._keep(now)
                if self._good_enough():
                    return

    def _change_one_by_one(self, now: Placement) -> None:
        """Give one sample its next higher or lower degree wherever that is faster, costliest samples first.

        Done where samples are few, so that the tries reach all of them.
        """
        tries = self._tries(_SAMPLES_CHANGED)
        changed = tries >= 2 * len(now.column)
        while changed and tries:
            changed = False
            cost = self.placer.sharding.cost_ns[np.arange(len(now.column)), now.column]
            for row, step in product(np.argsort(-cost, kind="stable").tolist(), (1, -1)):
                column = now.column.copy()
                column[row] += step
                if not (0 <= column[row] < len(self.placer.degrees) and self.feasible[row, column[row]]):
                    continue
                if not tries:
                    return
                tries -= 1
                found = self.placer.place(column, _ROUNDS, now.slowest_ns - 1)
                if found is not None and found.slowest_ns < now.slowest_ns:
                    self._keep(found)
                    now, changed = found, True
                    if self._good_enough():
                        return

    def _lower_degrees(self, now: Placement) -> None:
        """Give samples the next lower degree, those first that save most bytes, as many at once as succeed."""
        sent = self.placer.sharding.sent_bytes
        rows = np.arange(len(sent))
        fixed = np.zeros(len(sent), dtype=np.bool_)
        at_once = len(sent)
        for _ in range(self._tries(_SAMPLES_LOWERED)):
            lower = np.maximum(now.column - 1, 0)
            saved = np.where(self.feasible[rows, lower] & ~fixed, sent[rows, now.column] - sent[rows, lower], 0)
            order = np.argsort(-saved, kind="stable")
            order = order[: min(at_once, int((saved > 0).sum()))]
            if not len(order):
                return
            column = now.column.copy()
            column[order] -= 1
            found = self.placer.place(column, _ROUNDS, self._limit())
            if found is not None:
                self._keep(found)
            if found is not None and found.slowest_ns <= self._limit():
                now, at_once = found, 2 * len(order)
            elif len(order) == 1:
                fixed[order] = True
            else:
                at_once = len(order) // 2
