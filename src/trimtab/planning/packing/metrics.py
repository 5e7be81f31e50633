"""Pad ratio and dist ratio as OmniBal defines them (arXiv 2407.20761, section 3), and the spread of a load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.step_matching import dist_ratios


def pad_ratio(batches: Packs, tokens: NDArray[np.int64]) -> float:
    """Share of a padded batch that is padding: sum(t_max - t_i) / (t_max * B), mean over batches.

    Args:
        batches: the sequences each device runs at once.
        tokens: int64 [N], length of each sequence. A pack is one sequence: it has nothing to pad.
    """
    longest = batches.largest(tokens)
    padded = longest * batches.counts
    held = padded > 0
    return float((1 - batches.sums(tokens)[held] / padded[held]).mean()) if held.any() else 0.0


def dist_ratio(loads: NDArray[np.int64]) -> float:
    """Share of a step in which ranks wait: sum(T_max - T_i) / (T_max * R), mean over steps.

    Args:
        loads: int64 [S, R], load of each rank in each step.
    """
    return float(dist_ratios(loads[:, :, None]).mean()) if len(loads) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a load varies over packs or batches.

    Attributes:
        mean, sd: in the load's unit; the standard deviation over the population.
    """

    mean: float
    sd: float

    @staticmethod
    def of(load: NDArray[np.int64] | NDArray[np.float64]) -> Spread:
        """Mean and standard deviation of ``load`` [P]."""
        return Spread(mean=float(load.mean()), sd=float(load.std())) if len(load) else Spread(mean=0.0, sd=0.0)
