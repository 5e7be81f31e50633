"""LoongForge's encoder balance, as published: whole images by (T*H*W)^2, without length cap; videos stay put."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.peers.loongforge import rebalance


def solve(
    patches: NDArray[np.int64], is_video: NDArray[np.bool_], owner: NDArray[np.int64], ranks: int
) -> NDArray[np.int64]:
    """Rank that encodes each visual of one micro-batch.

    Args:
        patches: int64 [E], T*H*W of each visual.
        is_video: bool [E].
        owner: int64 [E], rank of its sample.
        ranks: R.
    """
    rank = owner.copy()
    images = np.flatnonzero(~is_video)
    rank[images] = rebalance(
        patches[images] ** 2, patches[images], owner[images], np.zeros(ranks, dtype=np.int64), length_ratio=None
    )
    return rank
