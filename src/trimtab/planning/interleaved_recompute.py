"""Which layers of an interleaved pipeline recompute, given its partition: the choice that shortens the played step.

A rank's chunks share its memory, and which of them pays for recomputation matters to the step though not to the rank's
work. Few choices are all tried; of many, layers are toggled and exchanged within a rank while that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.recompute import can_recompute
from trimtab.planning.stage_problem import StageProblem, plan_recomputing
from trimtab.schema.stages import StagePlan

MAX_CHOICES = 1 << 8
MAX_TRIED = 200

Mask = NDArray[np.bool_]


def refine(problem: StageProblem, bounds: Sequence[int], start: Mask | None = None) -> StagePlan | None:
    """The shortest plan found of a partition; None where no choice tried fits.

    Args:
        problem: what it is for.
        bounds: [K + 1].
        start: bool [L], layers that recompute, to begin with; None: all that can.
    """
    able = np.flatnonzero(can_recompute(problem.profile))
    if 2 ** len(able) <= MAX_CHOICES:
        return _shortest(problem, bounds, _every(len(problem.profile), able))
    here = can_recompute(problem.profile).copy() if start is None else start.copy()
    best, left = _fitting(problem, bounds, here), MAX_TRIED
    while best is not None and left > 0:
        for moved in _moves(problem, bounds, here, able):
            left -= 1
            found = _fitting(problem, bounds, moved)
            if found is not None and found.step_ns < best.step_ns:
                best, here = found, moved
                break
            if left <= 0:
                return best
        else:
            return best
    return best


def recomputing(problem: StageProblem, plan: StagePlan) -> Mask:
    """Bool [L], the layers of a plan that recompute."""
    mask = np.zeros(len(problem.profile), dtype=np.bool_)
    mask[[row for rows in plan.recompute for row in rows]] = True
    return mask


def _every(layers: int, able: NDArray[np.int64]) -> Iterator[Mask]:
    for chosen in product((False, True), repeat=len(able)):
        mask = np.zeros(layers, dtype=np.bool_)
        mask[able] = chosen
        yield mask


def _shortest(problem: StageProblem, bounds: Sequence[int], masks: Iterator[Mask]) -> StagePlan | None:
    plans = (_fitting(problem, bounds, mask) for mask in masks)
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.step_ns, default=None)


def _fitting(problem: StageProblem, bounds: Sequence[int], mask: Mask) -> StagePlan | None:
    plan = plan_recomputing(problem, bounds, mask, "joint")
    return plan if plan.fits else None


def _moves(problem: StageProblem, bounds: Sequence[int], mask: Mask, able: NDArray[np.int64]) -> Iterator[Mask]:
    """One layer less that recomputes, or one of a rank in place of another of its own."""
    for row in able[mask[able]]:
        yield _toggled(mask, row)
    for rank in range(problem.ranks):
        own = np.intersect1d(problem.rank_layers(bounds, rank)[0], able)
        for off, on in product(own[mask[own]], own[~mask[own]]):
            yield _toggled(mask, off, on)


def _toggled(mask: Mask, *rows: int) -> Mask:
    moved = mask.copy()
    moved[list(rows)] ^= True
    return moved
