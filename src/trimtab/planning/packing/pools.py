"""Pool after pool of samples into packs; what packs badly in one pool gets a second chance in the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.pool import pack_pool

_MAX_CARRIED = 8


def _none() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class PoolCarry:
    """Samples that wait for the next pool: at most an eighth of a pool, each at most once.

    Attributes:
        rows: int64, rows of the samples.
    """

    rows: NDArray[np.int64] = field(default_factory=_none)


def pack_next_pool(
    loads: NDArray[np.int64],
    caps: NDArray[np.int64],
    rows: NDArray[np.int64],
    carry: PoolCarry,
    rng: np.random.Generator,
    *,
    last: bool,
) -> Packs:
    """Pack ``rows`` and the carried samples; ``carry`` then holds those of the emptiest packs.

    Args:
        loads: int64 [N, K].
        caps: int64 [K].
        rows: int64, the samples of this pool.
        carry: samples of the pool before; replaced.
        rng: for algorithms that draw, and the order of the packs.
        last: carry nothing, no pool follows.

    Returns:
        Packs in random order.
    """
    pooled = np.concatenate([carry.rows, rows])
    packs = pack_pool(loads[pooled], caps, rng)
    waits = np.zeros(len(packs), dtype=np.bool_)
    if not last:
        waits = _emptiest(packs, loads[pooled], caps, already_carried=len(carry.rows), most=len(rows) // _MAX_CARRIED)
    carry.rows = packs.take(np.flatnonzero(waits)).relabel(pooled).rows
    return packs.take(rng.permutation(np.flatnonzero(~waits))).relabel(pooled)


def _emptiest(
    packs: Packs, loads: NDArray[np.int64], caps: NDArray[np.int64], *, already_carried: int, most: int
) -> NDArray[np.bool_]:
    """Packs whose samples wait, bool [P]: emptier than the mean, no sample carried before, at most ``most`` samples."""
    fill = (packs.sums(loads) / caps).max(axis=1)
    fresh = packs.largest((np.arange(len(loads)) < already_carried).astype(np.int64)) == 0
    candidates = np.flatnonzero(fresh & (fill < fill.mean()))
    candidates = candidates[np.argsort(fill[candidates], kind="stable")]
    chosen = candidates[np.cumsum(packs.counts[candidates]) <= most]
    waits = np.zeros(len(packs), dtype=np.bool_)
    waits[chosen] = True
    return waits


def pack_in_pools(
    loads: NDArray[np.int64],
    caps: NDArray[np.int64],
    order: NDArray[np.int64],
    pool: int,
    rng_of: Callable[[int], np.random.Generator],
) -> Packs:
    """Pack all rows of ``order``.

    Args:
        loads: int64 [N, K].
        caps: int64 [K].
        order: int64, rows in the order they are pooled.
        pool: samples in a pool.
        rng_of: the generator of each pool.
    """
    carry = PoolCarry()
    parts = []
    for index, begin in enumerate(range(0, len(order), pool)):
        rows = order[begin : begin + pool]
        last = begin + pool >= len(order)
        parts.append(pack_next_pool(loads, caps, rows, carry, rng_of(index), last=last))
    return Packs.joined(parts)
