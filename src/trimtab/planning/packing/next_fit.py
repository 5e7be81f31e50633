"""Next fit: samples in the given order, a new pack where the next sample would pass a cap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs


def next_fit(loads: NDArray[np.int64], caps: NDArray[np.int64]) -> Packs:
    """Pack in order.

    Where a pack begun at each sample would end is a search in the running totals, done for all samples at once; what
    remains is to hop from pack to pack.

    Args:
        loads: int64 [N, K], none above its cap.
        caps: int64 [K].
    """
    samples = len(loads)
    end = np.full(samples, samples, dtype=np.int64)
    for column, cap in enumerate(caps.tolist()):
        total = np.concatenate([[0], np.cumsum(loads[:, column], dtype=np.int64)])
        end = np.minimum(end, np.searchsorted(total, total[:-1] + cap, side="right") - 1)
    ends = end.tolist()
    offsets, at = [0], 0
    while at < samples:
        at = ends[at]
        offsets.append(at)
    return Packs(rows=np.arange(samples, dtype=np.int64), offsets=np.array(offsets, dtype=np.int64))
