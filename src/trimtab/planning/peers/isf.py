"""ISF, the data balance of OmniBal (Yao et al., ICML 2025, arXiv 2407.20761): iterative sampling and filtering.

Sampling: shuffle, fill a group until a threshold would be passed, start the next. Filtering: keep the good groups,
return the samples of the others to the pool. After T rounds all groups stay. A group is good if it reaches Q'_v *or*
Q'_t, with Q'_v = Q_v and Q'_t = Q_t - 128, as the authors' tool has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.next_fit import next_fit
from trimtab.planning.packing.packs import Packs


def isf(
    loads: NDArray[np.int64],
    caps: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    rounds: int,
    slack: NDArray[np.int64],
) -> Packs:
    """Pack by iterative sampling and filtering.

    Args:
        loads: int64 [N, K], none above its cap; K = 2 in the paper, vision and tokens.
        caps: int64 [K], Q.
        rng: decides the shuffles.
        rounds: T, at least 1.
        slack: int64 [K], Q - Q'.
    """
    pool = np.arange(len(loads), dtype=np.int64)
    kept: list[Packs] = []
    for index in range(rounds):
        pool = rng.permutation(pool)
        groups = next_fit(loads[pool], caps)
        if index < rounds - 1:
            good = (groups.sums(loads[pool]) >= caps - slack).any(axis=1)
            kept.append(groups.take(np.flatnonzero(good)).relabel(pool))
            pool = groups.take(np.flatnonzero(~good)).relabel(pool).rows
        else:
            kept.append(groups.relabel(pool))
        if len(pool) == 0:
            break
    return Packs.joined(kept)
