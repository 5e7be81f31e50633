"""Recomputation as a switch: every layer of the model, where it does not fit without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.planning.stage_problem import StageProblem, plan_recomputing
from trimtab.schema.stages import StagePlan


def recompute_all_or_none(problem: StageProblem, bounds: Sequence[int], method: str) -> StagePlan:
    """The plan of a partition without recomputation if it fits, else with all of it, which may not fit either."""
    layers = len(problem.profile)
    plan = plan_recomputing(problem, bounds, np.zeros(layers, dtype=np.bool_), method)
    return plan if plan.fits else plan_recomputing(problem, bounds, np.ones(layers, dtype=np.bool_), method)
