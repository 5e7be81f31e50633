"""Plans without sharding and with one degree for all: what an adaptive plan must not be slower than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.errors import InfeasibleError
from trimtab.planning.arrangement import Arrangement, arrange
from trimtab.planning.feasibility import feasible_degrees
from trimtab.planning.objectives import objectives
from trimtab.planning.partition import partition
from trimtab.planning.problem import PartitionProblem
from trimtab.planning.strategies import VisionRule, strategy_named
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def plainer_arrangements(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, vision: VisionRule, best: Arrangement
) -> list[Arrangement]:
    """Arrangements of whole samples and of every uniform degree, as far as they could be faster than ``best``.

    The adaptive search has compared them by language time within its own number of micro-batches; here they may have
    more, and vision counts.

    Args:
        batch: N samples.
        costs: their costs.
        problem: with the degrees of the adaptive strategy.
        vision: what is done with the encoder.
        best: the adaptive arrangement.
    """
    sharding = problem.sharding
    assert sharding is not None  # plan_step gives it to the adaptive strategy
    feasible = np.all(feasible_degrees(problem, sharding.family.degrees), axis=0).tolist()
    vision_ns = int(best.vision_ns.sum()) // problem.ranks if problem.sync == "layer" else 0
    found = []
    for index, degree in enumerate(sharding.family.degrees):
        cost = sharding.cost_ns[:, index]
        least = max(int(cost.sum()) * degree // problem.ranks, int(cost.max(initial=0))) + vision_ns
        if problem.ranks % degree or not feasible[index] or least >= best.step_ns:
            continue
        name = "whole-sample" if degree == 1 else f"uniform-{degree}"
        posed = replace(problem, sharding=None if degree == 1 else sharding.only(degree))
        for objective in objectives(batch, costs, posed, spread_vision=vision != "at-owner"):
            try:
                assignment = partition(objective, strategy_named(name))
            except InfeasibleError:
                continue
            found.append(arrange(batch, costs, posed, assignment, vision))
    return found
