"""What a partition evens out, where visuals may stay with their samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.planning.problem import PartitionProblem
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def objectives(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, *, spread_vision: bool
) -> list[PartitionProblem]:
    """Language, or also language plus own vision where vision stays with its sample."""
    if spread_vision or not batch.num_visuals or problem.sharding is not None:
        return [problem]
    own = np.zeros(len(batch), dtype=np.int64)
    np.add.at(own, batch.sample_of_visual, costs.vision_frame_ns * batch.grid_thw[:, 0])
    return [problem, replace(problem, cost_ns=problem.cost_ns + own)]
