"""What step matching leaves of a random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.step_matching import StepGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRandomness:
    """How far the steps of an epoch are from packs dealt at random.

    Attributes:
        correlation: between a step's number and its load; 0 for a random order, 1 for short to long.
        spread: standard deviation of the steps' mean loads over what independent packs would have; 1 for a random
            order, about the square root of the ranks where packs of a step are all alike.
        displacement: mean distance of a pack from its place in the random order, as a share of the epoch (1/3 for
            another random order).
    """

    correlation: float
    spread: float
    displacement: float


def order_randomness(groups: StepGroups, load: NDArray[np.int64]) -> OrderRandomness:
    """Measure an epoch.

    Args:
        groups: its steps; pack p was number p in the random order.
        load: int64 [P], a load of the packs, tokens for instance.
    """
    whole = groups.pack[~groups.zero_loss.any(axis=1)]
    order = groups.real()
    displacement = float(np.abs(np.argsort(order) - np.arange(len(order))).mean() / max(1, len(order)))
    means = load[whole].mean(axis=1)
    expected = float(load.std()) / np.sqrt(groups.pack.shape[1])
    if len(means) < 2 or expected == 0 or means.std() == 0:
        return OrderRandomness(correlation=0.0, spread=1.0, displacement=displacement)
    return OrderRandomness(
        correlation=float(np.corrcoef(np.arange(len(means)), means)[0, 1]),
        spread=float(means.std()) / expected,
        displacement=displacement,
    )
