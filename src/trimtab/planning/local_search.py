"""Move and swap items between bins until the slowest bin is close to the bound.

Each round takes the slowest bin and finds, among the lightest bins, the single move or swap that leaves the
smaller maximum; rounds are counted, never timed. Stops within ``tolerance`` of the bound, or when no bin helps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import Bins

_RECEIVERS = 6
_NO_ITEM = -1


def local_search(
    bins: Bins, bin_of: NDArray[np.int64], bound: float, tolerance: float, max_rounds: int
) -> NDArray[np.int64]:
    """Improve an assignment; the largest time never rises and no cap is broken.

    Args:
        bins: the items and bins.
        bin_of: int64 [N], a legal assignment.
        bound: time no assignment can beat.
        tolerance: stop when the slowest bin is within this share of the bound.
        max_rounds: moves and swaps at most.

    Returns:
        int64 [N].
    """
    if bins.count < 2 or len(bin_of) == 0:
        return bin_of
    search = _Search(bins, bin_of)
    receivers = min(_RECEIVERS, bins.count - 1)
    for _ in range(max_rounds):
        if search.slowest() <= bound * (1 + tolerance):
            break
        while not search.improve(receivers):
            if receivers == bins.count - 1:
                return search.bin_of
            receivers = min(bins.count - 1, receivers * 4)
    return search.bin_of


class _Search:
    """Times, tokens and members of the bins while items move."""

    def __init__(self, bins: Bins, bin_of: NDArray[np.int64]) -> None:
        self.bins = bins
        self.bin_of = bin_of.copy()
        self.time = bins.times(bin_of)
        self.tokens = np.zeros(bins.count, dtype=np.int64)
        np.add.at(self.tokens, bin_of, bins.tokens)
        order = np.argsort(bin_of, kind="stable")
        cuts = np.cumsum(np.bincount(bin_of, minlength=bins.count))[:-1]
        self.members = np.split(order, cuts)

    def slowest(self) -> float:
        return float(self.time.max())

    def improve(self, receivers: int) -> bool:
        """Make the best move or swap out of the slowest bin; False where none lowers it."""
        giver = int(self.time.argmax())
        takers = self._lightest(receivers, giver)
        given = self.members[giver]
        returned, taker_of = self._candidates(takers)
        if len(given) == 0:
            return False
        after = self._time_after(giver, given, returned, taker_of)
        best = int(after.argmin())
        if after.flat[best] >= self.time[giver]:
            return False
        row, column = divmod(best, len(returned))
        self._exchange(giver, int(given[row]), int(taker_of[column]), int(returned[column]))
        return True

    def _lightest(self, receivers: int, giver: int) -> NDArray[np.int64]:
        if receivers >= self.bins.count - 1:
            takers = np.arange(self.bins.count, dtype=np.int64)
        else:
            takers = np.sort(np.argpartition(self.time, receivers)[:receivers])
        others: NDArray[np.int64] = takers[takers != giver]
        return others

    def _candidates(self, takers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Items the takers could return, and whose they are; ``_NO_ITEM`` stands for a move without return."""
        members = [self.members[taker] for taker in takers]
        returned = np.concatenate([*members, np.full(len(takers), _NO_ITEM, dtype=np.int64)])
        owners = np.repeat(takers, [len(held) for held in members])
        return returned, np.concatenate([owners, takers])

    def _time_after(
        self, giver: int, given: NDArray[np.int64], returned: NDArray[np.int64], taker_of: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Larger of the two times after each exchange [given, returned]; the giver's own time where illegal."""
        is_item = returned != _NO_ITEM
        cost = self.bins.cost
        shift = cost[given][:, None] - np.where(is_item, cost[returned], 0)[None, :]
        slowness = self.bins.slowness
        out = shift if slowness is None else shift * slowness[giver]
        back = shift if slowness is None else shift * slowness[taker_of][None, :]
        after: NDArray[np.float64] = np.maximum(self.time[giver] - out, self.time[taker_of][None, :] + back)
        illegal = self._illegal(giver, given, returned, taker_of, is_item)
        if illegal is not None:
            after = np.where(illegal, self.time[giver], after)
        return after

    def _illegal(
        self,
        giver: int,
        given: NDArray[np.int64],
        returned: NDArray[np.int64],
        taker_of: NDArray[np.int64],
        is_item: NDArray[np.bool_],
    ) -> NDArray[np.bool_] | None:
        if self.bins.max_tokens is None and not self.bins.equal_counts:
            return None
        illegal = np.zeros((len(given), len(returned)), dtype=np.bool_)
        if self.bins.equal_counts:
            illegal |= ~is_item[None, :]
        if self.bins.max_tokens is not None:
            tokens = self.bins.tokens
            shift = tokens[given][:, None] - np.where(is_item, tokens[returned], 0)[None, :]
            illegal |= self.tokens[taker_of][None, :] + shift > self.bins.max_tokens
            illegal |= self.tokens[giver] - shift > self.bins.max_tokens
        return illegal

    def _exchange(self, giver: int, item: int, taker: int, other: int) -> None:
        self._hand_over(item, giver, taker)
        if other != _NO_ITEM:
            self._hand_over(other, taker, giver)

    def _hand_over(self, item: int, source: int, target: int) -> None:
        cost, slowness = self.bins.cost[item], self.bins.slowness
        self.time[source] -= cost if slowness is None else cost * slowness[source]
        self.time[target] += cost if slowness is None else cost * slowness[target]
        self.tokens[source] -= self.bins.tokens[item]
        self.tokens[target] += self.bins.tokens[item]
        self.members[source] = self.members[source][self.members[source] != item]
        self.members[target] = np.append(self.members[target], item)
        self.bin_of[item] = target
