"""How few packs could do: a certificate beside every packing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lower_bound(loads: NDArray[np.int64], caps: NDArray[np.int64]) -> int:
    """Packs that any packing needs: the largest bound of a single load.

    Args:
        loads: int64 [N, K], none above its cap.
        caps: int64 [K].
    """
    if len(loads) == 0:
        return 0
    return max(1, *(_one_load(loads[:, column], int(cap)) for column, cap in enumerate(caps.tolist())))


def _one_load(load: NDArray[np.int64], cap: int) -> int:
    """Bound L2 of Martello and Toth (1990), the volume bound included.

    For a threshold a up to cap / 2: samples above cap - a share a pack with none of at least a; samples above cap / 2
    need a pack each; what these leave free can hold samples from a to cap / 2, and the rest needs further packs.
    """
    ordered = np.sort(load)
    total = np.concatenate([[0], np.cumsum(ordered, dtype=np.int64)])
    half = int(np.searchsorted(ordered, cap // 2, side="right"))
    thresholds = np.unique(np.concatenate([[0], ordered[:half]]))
    small_from = np.searchsorted(ordered, thresholds, side="left")
    alone_from = np.searchsorted(ordered, cap - thresholds, side="right")
    small = total[half] - total[small_from]
    free = (alone_from - half) * cap - (total[alone_from] - total[half])
    further = np.maximum(0, -(-(small - free) // cap))
    return int((len(ordered) - half + further).max())
