"""The packs of one pool of samples: the best of several algorithms, with a certificate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.best_fit_decreasing import by_scarcest, by_volume
from trimtab.planning.packing.lower_bound import lower_bound
from trimtab.planning.packing.packs import Packs
from trimtab.planning.peers.isf import isf

PoolPacker = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], Packs]

_ISF_ROUNDS = 4
_GOOD_ENOUGH = 64


def _isf_rounds(loads: NDArray[np.int64], caps: NDArray[np.int64], rng: np.random.Generator) -> Packs:
    """A few rounds; at tight caps more rounds make ISF worse."""
    return isf(loads, caps, rng, rounds=_ISF_ROUNDS, slack=caps // _GOOD_ENOUGH)


PORTFOLIO: dict[str, PoolPacker] = {
    "best-fit-by-scarcest": by_scarcest,
    "best-fit-by-volume": by_volume,
    "isf-rounds": _isf_rounds,
}


def pack_pool(loads: NDArray[np.int64], caps: NDArray[np.int64], rng: np.random.Generator) -> Packs:
    """The fewest packs any algorithm of the portfolio finds; the search ends where the lower bound is met.

    Args:
        loads: int64 [N, K], none above its cap.
        caps: int64 [K].
        rng: for algorithms that draw.
    """
    bound = lower_bound(loads, caps)
    best: Packs | None = None
    for packer in PORTFOLIO.values():
        packs = packer(loads, caps, rng)
        if best is None or len(packs) < len(best):
            best = packs
        if len(best) <= bound:
            break
    assert best is not None  # the portfolio is not empty
    return best
