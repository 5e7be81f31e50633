"""Best fit decreasing by tokens: fits where balancing by cost leaves holes too small."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray


def best_fit(tokens: NDArray[np.int64], bins: int, max_tokens: int) -> NDArray[np.int64] | None:
    """Put each item, most tokens first, into the fullest bin that still has room.

    Args:
        tokens: int64 [N].
        bins: number of bins.
        max_tokens: hard cap of each.

    Returns:
        int64 [N], bin of each item, or None where an item found no room.
    """
    room = [(max_tokens, index) for index in range(bins)]
    chosen = np.zeros(len(tokens), dtype=np.int64)
    for row in np.argsort(-tokens, kind="stable").tolist():
        size = int(tokens[row])
        place = bisect_left(room, (size, -1))
        if place == len(room):
            return None
        left, index = room.pop(place)
        insort(room, (left - size, index))
        chosen[row] = index
    return chosen
