"""Packs into steps: those that run at the same time on different ranks are alike in every load.

Packs come in random order. Within a window of some steps they are sorted and cut into groups of one pack a rank; then
the groups are shuffled. So the order stays random beyond a window, and ranks wait little for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.setting_checks import check_least


@dataclass(frozen=True, eq=False, kw_only=True)
class StepGroups:
    """G groups of one pack a rank (R ranks).

    Attributes:
        pack: int64 [G, R], index of the pack.
        zero_loss: bool [G, R], a padding pack: a copy that runs with loss weight 0, so that ranks stay in step.
    """

    pack: NDArray[np.int64]
    zero_loss: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.pack)

    def real(self, first: int = 0) -> NDArray[np.int64]:
        """int64, packs of group ``first`` and later without the copies, group by group."""
        return self.pack[first:][~self.zero_loss[first:]]


def match_steps(
    loads: NDArray[np.int64], ranks: int, window: int, rng: np.random.Generator, *, multiple: int = 1
) -> StepGroups:
    """Deal packs to ranks, step by step.

    Args:
        loads: int64 [P, K], loads of the packs, in the order they are to run, more or less.
        ranks: R.
        window: most groups within which packs are exchanged; 1 keeps the order.
        rng: decides the order of a window's groups, and the rank of each pack in its group.
        multiple: the number of groups is padded to a multiple of this (micro-batches of an optimizer step).

    Raises:
        SettingsError: a number is below 1.
    """
    for name, value in (("ranks", ranks), ("window", window), ("multiple", multiple)):
        check_least(name, value, 1)
    packs = len(loads)
    full = packs // ranks
    order = np.arange(packs, dtype=np.int64)
    groups = order[: full * ranks].reshape(full, ranks)
    if window > 1 and full:
        window_of_group = _even_windows(full, window)
        if ranks > 1:
            order = _most_even(loads, ranks, window_of_group)
        shuffled = np.lexsort((rng.random(full), window_of_group))
        groups = rng.permuted(order[: full * ranks].reshape(full, ranks)[shuffled], axis=1)
    return _padded(groups, order[full * ranks :], loads, multiple)


def _even_windows(groups: int, window: int) -> NDArray[np.int64]:
    """int64 [G], window of each group: as many as needed, all of one size give or take one, none small at the end."""
    return np.arange(groups, dtype=np.int64) * -(-groups // window) // groups


def _most_even(loads: NDArray[np.int64], ranks: int, window_of_group: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [P], the best of several orders in each window; the last P mod R entries are the lightest of the last."""
    packs, full = len(loads), len(window_of_group)
    starts = np.flatnonzero(np.diff(window_of_group, prepend=-1))
    window_of_pack = np.append(window_of_group.repeat(ranks), np.repeat(window_of_group[-1:], packs % ranks))
    best = np.full(len(starts), np.inf)
    chosen = np.arange(packs, dtype=np.int64)
    for order in _orders(loads, window_of_pack, starts * ranks, ranks):
        last = int(starts[-1]) * ranks
        order[last:] = np.roll(order[last:], -(packs % ranks))
        uneven = dist_ratios(loads[order[: full * ranks]].reshape(full, ranks, -1)).sum(axis=1)
        score = np.add.reduceat(uneven, starts)
        better = score < best
        best = np.where(better, score, best)
        of_pack = better[window_of_pack]
        chosen[of_pack] = order[of_pack]
    return chosen


def _orders(
    loads: NDArray[np.int64], window_of_pack: NDArray[np.int64], starts: NDArray[np.int64], ranks: int
) -> Iterator[NDArray[np.int64]]:
    """Sorted by one load; or cut into slabs by one load, each sorted by another."""
    columns = range(loads.shape[1])
    for column in columns:
        yield np.lexsort((loads[:, column], window_of_pack))
    longest = int(np.diff(starts, append=len(loads)).max()) // ranks
    slab_packs = -(-longest // max(2, isqrt(longest))) * ranks
    slab = (np.arange(len(loads), dtype=np.int64) - starts[window_of_pack]) // slab_packs
    for first, second in permutations(columns, 2):
        by_first = np.lexsort((loads[:, second], loads[:, first], window_of_pack))
        yield by_first[np.lexsort((loads[by_first, second], slab, window_of_pack))]


def dist_ratios(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 [S, K], idle share of a step: 1 - mean / max over the ranks of ``loads`` (int64 [S, R, K])."""
    largest = np.maximum(loads.max(axis=1), 1)
    idle: NDArray[np.float64] = (largest - loads.mean(axis=1)) / largest
    return np.where(loads.any(axis=1), idle, 0.0)


def _padded(groups: NDArray[np.int64], rest: NDArray[np.int64], loads: NDArray[np.int64], multiple: int) -> StepGroups:
    """Append the short group, filled up with copies of its lightest pack, and whole groups of copies."""
    ranks = groups.shape[1]
    wanted = -(-(len(groups) + (len(rest) > 0)) // multiple) * multiple
    copies = wanted * ranks - groups.size - len(rest)
    if copies == 0:
        return StepGroups(pack=groups, zero_loss=np.zeros(groups.shape, dtype=np.bool_))
    candidates = rest if len(rest) else groups[-1]
    shares = loads[candidates] / np.maximum(loads[candidates].mean(axis=0), 1)
    copy = candidates[shares.sum(axis=1).argmin()]
    pack = np.concatenate([groups.ravel(), rest, np.full(copies, copy, dtype=np.int64)])
    zero_loss = np.arange(len(pack)) >= len(pack) - copies
    return StepGroups(pack=pack.reshape(wanted, ranks), zero_loss=zero_loss.reshape(wanted, ranks))
