"""Longest processing time first (Graham 1969), on a heap, under hard caps."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import Bins
from trimtab.planning.lpt_blocks import lpt_blocks

_MOST_LOAD = 2**62
_MANY_BINS = 64


def lpt(bins: Bins) -> NDArray[np.int64] | None:
    """Give each item, longest first, to the bin that finishes earliest with room for it.

    Returns:
        int64 [N], bin of each item, or None where an item found no room.
    """
    if bins.slowness is not None:
        return _lpt_uneven(bins, bins.slowness)
    if bins.max_tokens is None and not bins.equal_counts:
        return _lpt_free(bins)
    return _lpt_capped(bins)


def _start(bins: Bins) -> list[int]:
    return [0] * bins.count if bins.start is None else bins.start.tolist()


def _lpt_free(bins: Bins) -> NDArray[np.int64]:
    """Without caps: in blocks while there are many bins of similar load, then on a heap."""
    load = np.array(_start(bins), dtype=np.int64)
    first = lpt_blocks(bins.cost, load) if bins.count >= _MANY_BINS else np.zeros(0, dtype=np.int64)
    if len(first) == len(bins.cost):
        return first
    return np.concatenate([first, _lpt_heap(bins.cost[len(first) :], load)])


def _lpt_heap(cost: NDArray[np.int64], load: NDArray[np.int64]) -> NDArray[np.int64]:
    """A heap entry is load * B + bin, one number, which takes a third of the time of pairs."""
    count = len(load)
    exact = np.int64 if int(load.max()) + int(cost.max()) * len(cost) <= _MOST_LOAD // count else object
    heap = (load.astype(exact) * count + np.arange(count)).tolist()
    heapq.heapify(heap)
    replace = heapq.heapreplace  # gives back the entry it takes out, the lightest
    lightest = [replace(heap, heap[0] + grown) for grown in (cost.astype(exact) * count).tolist()]
    return (np.array(lightest, dtype=exact) % count).astype(np.int64)


def _lpt_capped(bins: Bins) -> NDArray[np.int64] | None:
    """Bins without room wait in a second heap by free tokens, since a later, shorter item may fit: O(n log B)."""
    heap = list(zip(_start(bins), range(bins.count), strict=True))
    heapq.heapify(heap)
    parked: list[tuple[int, int, int]] = []
    free = _room(bins).tolist()
    slots = _Slots(len(bins.cost), bins.count) if bins.equal_counts else None
    chosen = []
    for cost, tokens in zip(bins.cost.tolist(), bins.tokens.tolist(), strict=True):
        while parked and -parked[0][0] >= tokens:
            _, load, index = heapq.heappop(parked)
            heapq.heappush(heap, (load, index))
        while heap:
            load, index = heapq.heappop(heap)
            if slots is not None and slots.full(index):
                continue
            if free[index] >= tokens:
                break
            heapq.heappush(parked, (-free[index], load, index))
        else:
            return None
        chosen.append(index)
        free[index] -= tokens
        if slots is not None:
            slots.take(index)
        heapq.heappush(heap, (load + cost, index))
    return np.array(chosen, dtype=np.int64)


class _Slots:
    """Item counts that differ by at most one: some bins take the remainder, first come first served."""

    def __init__(self, items: int, bins: int) -> None:
        self.base, self.extra = divmod(items, bins)
        self.held = [0] * bins

    def full(self, index: int) -> bool:
        return self.held[index] >= self.base + (self.extra > 0)

    def take(self, index: int) -> None:
        if self.held[index] == self.base:
            self.extra -= 1
        self.held[index] += 1


def _lpt_uneven(bins: Bins, slowness: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Bins of unequal speed: the earliest *finish* counts, so every bin is looked at."""
    time = np.array(_start(bins), dtype=np.float64)
    free = _room(bins)
    slots = _Slots(len(bins.cost), bins.count) if bins.equal_counts else None
    chosen = []
    for cost, tokens in zip(bins.cost.tolist(), bins.tokens.tolist(), strict=True):
        finish = np.where(free >= tokens, time + cost * slowness, np.inf)
        if slots is not None:
            finish[[slots.full(index) for index in range(bins.count)]] = np.inf
        index = int(finish.argmin())
        if finish[index] == np.inf:
            return None
        time[index] = finish[index]
        free[index] -= tokens
        if slots is not None:
            slots.take(index)
        chosen.append(index)
    return np.array(chosen, dtype=np.int64)


def _room(bins: Bins) -> NDArray[np.int64]:
    """Tokens [B] that each bin still takes."""
    if bins.max_tokens is None:
        return np.full(bins.count, int(bins.tokens.sum()), dtype=np.int64)
    return bins.max_tokens - (np.zeros(bins.count, dtype=np.int64) if bins.held is None else bins.held)
