"""Best fit decreasing for several loads: the largest sample first, into the fullest pack with room in every load."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs

_SCALE = 1 << 8
_LEVELS = 64
_PACK_BITS = 32  # of a key: room in the high bits, the pack's index in these
_PACK_MASK = (1 << _PACK_BITS) - 1


def by_scarcest(loads: NDArray[np.int64], caps: NDArray[np.int64], rng: np.random.Generator) -> Packs:
    """Best fit decreasing; "full" and "large" are told by the load that needs most packs."""
    weights = np.zeros(len(caps), dtype=np.int64)
    weights[int(_volumes(loads, caps).argmax())] = 1
    return best_fit(loads, caps, weights, _large_first(loads @ weights, int(caps @ weights), rng))


def by_volume(loads: NDArray[np.int64], caps: NDArray[np.int64], rng: np.random.Generator) -> Packs:
    """Best fit decreasing; every load counts by its share of the cap times the packs it needs."""
    volumes = _volumes(loads, caps)
    weights = np.rint(_SCALE * volumes / volumes.max(initial=1e-9) * (caps.max() / caps)).astype(np.int64)
    return best_fit(loads, caps, weights, _large_first(loads @ weights, int(caps @ weights), rng))


def _large_first(size: NDArray[np.int64], room: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Samples by descending size, in random order where sizes differ by less than a 64th of a pack.

    Without chance, a pool of the same samples would give the same packs in every epoch.
    """
    return np.lexsort((rng.random(len(size)), -(size * _LEVELS // max(1, room))))


def best_fit(
    loads: NDArray[np.int64], caps: NDArray[np.int64], weights: NDArray[np.int64], order: NDArray[np.int64]
) -> Packs:
    """Put sample after sample into the fullest pack that holds it, or into a new one.

    Args:
        loads: int64 [N, K], none above its cap; N at least 1.
        caps: int64 [K].
        weights: int64 [K], not negative; a sample's size and a pack's room are sums of loads by these weights.
        order: int64 [N], which sample comes when.
    """
    size = loads @ weights
    shifts, guard = _lanes(caps.tolist())
    needs = _joined(loads[order], shifts)
    placed, packs = _fill(
        zip(size[order].tolist(), needs, strict=True),
        room=int(caps @ weights),
        empty=_joined(caps[None], shifts)[0] | guard,
        smallest=_joined(loads.min(axis=0)[None], shifts)[0],
        guard=guard,
    )
    pack_of = np.empty(len(loads), dtype=np.int64)
    pack_of[order] = placed
    return Packs.from_labels(pack_of, packs)


def _fill(
    samples: Iterable[tuple[int, int]], *, room: int, empty: int, smallest: int, guard: int
) -> tuple[list[int], int]:
    """The pack of each sample (size, needs) and the number of packs.

    Open packs are kept least room first; one that not even the smallest sample fits is closed. All loads of a pack or
    sample are one whole number, side by side with a guard bit above each: where needs are subtracted from what is
    free, a guard bit is lost exactly if a load does not fit, so that one comparison asks for all loads at once.
    """
    new_key = room << _PACK_BITS
    keys: list[int] = []
    free: list[int] = []
    placed = []
    for size, need in samples:
        bits = size << _PACK_BITS
        for at in range(bisect_left(keys, bits), len(keys)):
            key = keys[at]
            pack = key & _PACK_MASK
            left = free[pack] - need
            if left & guard == guard:
                del keys[at]
                free[pack] = left
                break
        else:
            pack, left = len(free), empty - need
            key = new_key | pack
            free.append(left)
        if (left - smallest) & guard == guard:
            insort(keys, key - bits)
        placed.append(pack)
    return placed, len(free)


def _lanes(caps: list[int]) -> tuple[list[int], int]:
    """First bit of each load in the joint number, and the guard bits."""
    shifts, at, guard = [], 0, 0
    for cap in caps:
        shifts.append(at)
        at += cap.bit_length() + 1
        guard |= 1 << (at - 1)
    return shifts, guard


def _joined(loads: NDArray[np.int64], shifts: list[int]) -> list[int]:
    """Each row's loads [N, K] side by side; as Python's whole numbers, since they may take more than 64 bits."""
    joined = np.zeros(len(loads), dtype=object)
    for column, shift in enumerate(shifts):
        joined += loads[:, column].astype(object) << shift
    return joined.tolist()


def _volumes(loads: NDArray[np.int64], caps: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(loads.sum(axis=0) / caps, dtype=np.float64)
