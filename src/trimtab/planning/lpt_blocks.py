"""Longest processing time first for many bins: the same choices as on a heap, a block of items at a time.

With bins by load and items by cost, the i-th next item goes to the i-th lightest bin for as long as that bin is still
lighter than any that has just been given an item. Where loads are close, a block is as long as there are bins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Blocks shorter than this share of the bins cost more than the heap; after so many of them the heap takes over.
_SHORT = 8
_MOST_SHORT = 16


def lpt_blocks(cost: NDArray[np.int64], load: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bins of the first items.

    Args:
        cost: int64 [N], descending.
        load: int64 [B], of each bin so far; updated in place.

    Returns:
        int64 [n], n <= N: items after these were left, since blocks had become too short to be worth it.
    """
    chosen = np.empty(len(cost), dtype=np.int64)
    placed, short = 0, 0
    while placed < len(cost) and short < _MOST_SHORT:
        order = np.argsort(load, kind="stable")
        items = cost[placed : placed + len(load)]
        lightest = load[order[: len(items)]]
        after = lightest + items
        overtaken = lightest[1:] > np.minimum.accumulate(after)[:-1]
        block = int(overtaken.argmax()) + 1 if overtaken.any() else len(items)
        bins = order[:block]
        chosen[placed : placed + block] = bins
        load[bins] = after[:block]
        placed += block
        short += block * _SHORT < len(load)
    return chosen[:placed]
