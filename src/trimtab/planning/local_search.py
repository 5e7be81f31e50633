"""Exchange items between bins until the slowest bin is close to the bound.

Each round deals the lightest bins to the slowest ones and makes, for every slow bin at once, the move or swap with one
of its light bins that evens the two best. Where that improves nothing, the slowest bin is tried against all others.
Rounds are counted, never timed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import Bins

# Candidate exchanges looked at in one round; with more, fewer pairs take part.
_MOST_CANDIDATES = 1 << 20
# Light bins dealt to one slow bin in a round.
_MOST_TAKERS = 2
# Pairs exchange only their smallest items: 16 x 16 differences are fine enough, and larger items gain nothing.
_SMALLEST_ITEMS = 16
_NOTHING = np.zeros(1, dtype=np.int64)

Times = NDArray[np.int64] | NDArray[np.float64]


def local_search(
    bins: Bins, bin_of: NDArray[np.int64], bound: float, tolerance: float, max_rounds: int
) -> NDArray[np.int64]:
    """Improve an assignment; the largest time never rises and no cap is broken.

    Args:
        bins: the items and bins.
        bin_of: int64 [N], a legal assignment.
        bound: time no assignment can beat.
        tolerance: stop when the slowest bin is within this share of the bound.
        max_rounds: rounds at most.

    Returns:
        int64 [N].
    """
    target = bound * (1 + tolerance)
    time = bins.times(bin_of)
    if bins.count < 2 or len(bin_of) == 0 or time.max() <= target:
        return bin_of
    search = _Search(bins, bin_of, time)
    for _ in range(max_rounds):
        if search.time.max() <= target or not (search.even_pairs(target) or search.relieve_slowest()):
            break
    return search.bin_of


@dataclass(frozen=True, eq=False)
class _Exchanges:
    """The best exchange of each pair: cells of the member table, and the larger time after it (float or int [P])."""

    givers: NDArray[np.int64]
    takers: NDArray[np.int64]
    given_cell: NDArray[np.int64]
    returned_cell: NDArray[np.int64]
    after: Times


class _Search:
    """Times, tokens and members of the bins while items move.

    ``members`` [B, K] lists the items of each bin; cells without an item hold N, an item of no cost, so that a
    move is a swap against nothing. Such cells come first in a row, then items by descending cost as far as no
    exchange disturbed that; the first cell is always empty.
    """

    def __init__(self, bins: Bins, bin_of: NDArray[np.int64], time: Times) -> None:
        self.bins = bins
        self.bin_of = bin_of.copy()
        self.time = time
        self.none = len(bin_of)
        self.cost = np.concatenate([bins.cost, _NOTHING])
        self.twice = 2 * self.cost
        self.tokens = np.concatenate([bins.tokens, _NOTHING])
        self.held = np.zeros(bins.count, dtype=np.int64) if bins.held is None else bins.held.copy()
        if bins.max_tokens is not None:
            np.add.at(self.held, bin_of, bins.tokens)
        self.members = self._table()
        self.smallest = _smallest_cells(self.members.shape[1])

    def _table(self) -> NDArray[np.int64]:
        counts = np.bincount(self.bin_of, minlength=self.bins.count)
        narrow = self.bin_of.astype(np.uint16) if self.bins.count <= 1 << 16 else self.bin_of
        order = np.argsort(narrow, kind="stable")  # numpy sorts 16 bits by radix, five times as fast
        columns = int(counts.max()) + 1
        members = np.full((self.bins.count, columns), self.none, dtype=np.int64)
        members[self.bin_of[order], columns + np.arange(self.none) - np.repeat(np.cumsum(counts), counts)] = order
        return members

    def even_pairs(self, target: float) -> bool:
        """Even each bin above target with one of the light bins dealt to it; False where the slowest gained nothing."""
        by_time = self.time.argsort(kind="stable")
        slow = min(int((self.time > target).sum()), self.bins.count // 2, self._most_pairs())
        dealt = max(1, min((self.bins.count - slow) // slow, _MOST_TAKERS, self._most_pairs() // slow))
        givers, takers = by_time[::-1][:slow], by_time[: slow * dealt]
        if dealt > 1:
            givers, takers = givers.repeat(dealt), takers.reshape(dealt, slow).T.ravel()
        found = self._best(givers, takers, self.smallest)
        better = found.after < self.time[givers]
        if dealt > 1:
            best = found.after.reshape(slow, dealt).argmin(axis=1) + dealt * np.arange(slow)
            chosen = best[better[best]]
        else:
            chosen = better.nonzero()[0]
        self._apply(found, chosen)
        return bool(better[:dealt].any())

    def relieve_slowest(self) -> bool:
        """Make the best exchange between the slowest bin and any other; False where none lowers it."""
        by_time = np.argsort(self.time, kind="stable")
        slowest, others = by_time[-1], by_time[:-1]
        for first in range(0, len(others), self._most_pairs()):
            takers = others[first : first + self._most_pairs()]
            found = self._best(np.full(len(takers), slowest), takers, np.arange(self.members.shape[1]))
            best = int(found.after.argmin())
            if found.after[best] < self.time[slowest]:
                self._apply(found, np.array([best]))
                return True
        return False

    def _most_pairs(self) -> int:
        cells: int = self.members.shape[1]
        return max(1, _MOST_CANDIDATES // cells**2)

    def _best(self, givers: NDArray[np.int64], takers: NDArray[np.int64], cells: NDArray[np.int64]) -> _Exchanges:
        """Of every pair's exchanges [P, cells, cells], the one with the smaller maximum."""
        given, returned = self.members[givers[:, None], cells], self.members[takers[:, None], cells]
        uneven = self._uneven_after(givers, takers, given, returned)
        illegal = self._illegal(givers, takers, given, returned)
        if illegal is not None:
            uneven[illegal] = 2 * self.time.max()
        uneven = uneven.reshape(len(givers), -1)
        best = uneven.argmin(axis=1)
        given_cell, returned_cell = np.divmod(best, len(cells))
        after = self._larger(givers, takers, uneven[np.arange(len(best)), best])
        return _Exchanges(givers, takers, cells[given_cell], cells[returned_cell], after)

    def _uneven_after(
        self,
        givers: NDArray[np.int64],
        takers: NDArray[np.int64],
        given: NDArray[np.int64],
        returned: NDArray[np.int64],
    ) -> Times:
        """How far apart the times of each pair end [P, K, K]; where bins differ in speed, the larger of them.

        The sum of equally fast bins' times stays, so the larger is least where they are closest.
        """
        give, take = self.time[givers], self.time[takers]
        slowness = self.bins.slowness
        if slowness is not None:
            shift = self.cost[given][:, :, None] - self.cost[returned][:, None, :]
            of_giver, of_taker = slowness[givers][:, None, None], slowness[takers][:, None, None]
            larger: NDArray[np.float64]
            larger = np.maximum(give[:, None, None] - shift * of_giver, take[:, None, None] + shift * of_taker)
            return larger
        even = self.twice[returned] + (give - take)[:, None]
        apart: NDArray[np.int64] = self.twice[given][:, :, None] - even[:, None, :]
        np.abs(apart, out=apart)
        return apart

    def _larger(self, givers: NDArray[np.int64], takers: NDArray[np.int64], uneven: Times) -> Times:
        """Larger time of each pair [P], of what ``_uneven_after`` gives."""
        if self.bins.slowness is not None:
            return uneven
        return (self.time[givers] + self.time[takers] + uneven) // 2

    def _illegal(
        self,
        givers: NDArray[np.int64],
        takers: NDArray[np.int64],
        given: NDArray[np.int64],
        returned: NDArray[np.int64],
    ) -> NDArray[np.bool_] | None:
        """Exchanges [P, K, K] that break a cap or the equal counts; None where nothing could."""
        illegal: NDArray[np.bool_] | None = None
        if self.bins.equal_counts:
            illegal = (given == self.none)[:, :, None] != (returned == self.none)[:, None, :]
        cap = self.bins.max_tokens
        if cap is not None:
            shift = self.tokens[given][:, :, None] - self.tokens[returned][:, None, :]
            over = self.held[takers][:, None, None] + shift > cap
            over |= self.held[givers][:, None, None] - shift > cap
            illegal = over if illegal is None else illegal | over
        return illegal

    def _apply(self, found: _Exchanges, pairs: NDArray[np.int64]) -> None:
        """Carry out the exchanges of some pairs, whose takers are distinct."""
        givers, takers = found.givers[pairs], found.takers[pairs]
        given_cell, returned_cell = found.given_cell[pairs], found.returned_cell[pairs]
        given, returned = self.members[givers, given_cell], self.members[takers, returned_cell]
        self.members[givers, given_cell] = returned
        self.members[takers, returned_cell] = given
        shift = self.cost[given] - self.cost[returned]
        slowness = self.bins.slowness
        self.time[givers] -= shift if slowness is None else shift * slowness[givers]
        self.time[takers] += shift if slowness is None else shift * slowness[takers]
        if self.bins.max_tokens is not None:
            self.held[givers] -= self.tokens[given] - self.tokens[returned]
            self.held[takers] += self.tokens[given] - self.tokens[returned]
        is_given, is_returned = given != self.none, returned != self.none
        self.bin_of[given[is_given]] = takers[is_given]
        self.bin_of[returned[is_returned]] = givers[is_returned]
        if not (self.members[:, 0] == self.none).all():
            empty = np.full((self.bins.count, 1), self.none, dtype=np.int64)
            self.members = np.concatenate([empty, self.members], axis=1)
            self.smallest = _smallest_cells(self.members.shape[1])


def _smallest_cells(columns: int) -> NDArray[np.int64]:
    """Columns of the smallest items, and of the empty cell."""
    cells = np.arange(max(0, columns - 1 - _SMALLEST_ITEMS), columns)
    cells[0] = 0
    return cells
