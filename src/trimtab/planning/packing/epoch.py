"""All packs of an epoch, fresh for each: a function of the samples' loads, settings, seed and epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.pools import pack_in_pools
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.peers.isf import isf

# Streams of random numbers keyed by (seed, epoch, stream, ...), so that none depends on how much another drew.
_SAMPLES, _POOLS, _PACKS = range(3)


def pack_epoch(problem: PackProblem, settings: PackSettings, *, seed: int, epoch: int) -> Packs:
    """Pack every sample that fits the caps; oversized ones are in ``problem.oversized()`` and take no other with them.

    Returns:
        Packs of rows of ``problem``, in random order.
    """
    rows = problem.fitting()
    loads, caps = problem.loads[:, problem.capped][rows], problem.limits
    key = [seed, epoch]
    samples = np.random.default_rng([*key, _SAMPLES])
    if settings.method == "isf":
        packs = isf(loads, caps, samples, rounds=settings.isf_rounds, slack=isf_slack(caps, settings))
    else:
        packs = pack_in_pools(
            loads,
            caps,
            samples.permutation(len(rows)),
            settings.pool,
            lambda pool: np.random.default_rng([*key, _POOLS, pool]),
        )
    order = np.random.default_rng([*key, _PACKS]).permutation(len(packs))
    return packs.relabel(rows).take(order)


def isf_slack(caps: NDArray[np.int64], settings: PackSettings) -> NDArray[np.int64]:
    """Q - Q' of each capped load: none but of the last, the tokens."""
    slack = np.zeros_like(caps)
    slack[-1] = settings.isf_slack
    return slack
