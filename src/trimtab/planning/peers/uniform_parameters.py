"""As many parameters on every stage: DeepSpeed's ``partition_method="parameters"``."""

from __future__ import annotations

from trimtab.planning.min_max import least_largest, run_sums
from trimtab.planning.peers.all_or_none import recompute_all_or_none
from trimtab.planning.stage_problem import StageProblem
from trimtab.schema.stages import StagePlan

NAME = "uniform-parameters"


def solve(problem: StageProblem) -> StagePlan:
    """Make the largest number of parameters of a stage least. It may not fit."""
    _, bounds = least_largest(run_sums(problem.profile.parameters, problem.stages))
    return recompute_all_or_none(problem, bounds, NAME)
