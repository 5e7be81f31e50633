"""As many transformer layers on every stage: Megatron-LM's rule."""

from __future__ import annotations

import numpy as np

from trimtab.planning.min_max import least_largest, run_sums
from trimtab.planning.peers.all_or_none import recompute_all_or_none
from trimtab.planning.stage_problem import StageProblem
from trimtab.schema.stages import StagePlan

NAME = "uniform-layers"


def solve(problem: StageProblem) -> StagePlan:
    """Count vision and language layers alike; embeddings, projector and head count nothing. It may not fit."""
    counted = np.array([kind in ("vision", "language") for kind in problem.profile.kinds], dtype=np.int64)
    _, bounds = least_largest(run_sums(counted, problem.stages))
    return recompute_all_or_none(problem, bounds, NAME)
