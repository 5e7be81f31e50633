"""Plans without sharding and with one degree for all: what an adaptive plan must not be worse than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.errors import InfeasibleError
from trimtab.planning.arrangement import Arrangement, arrange
from trimtab.planning.choice import aim, evens_attention
from trimtab.planning.feasibility import feasible_degrees
from trimtab.planning.loads import shared_bytes
from trimtab.planning.objectives import objectives
from trimtab.planning.partition import partition
from trimtab.planning.problem import PartitionProblem
from trimtab.planning.settings import PlanSettings
from trimtab.planning.sharding_problem import sharding_for
from trimtab.planning.strategies import VisionRule, strategy_named
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def plainer_arrangements(
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    settings: PlanSettings,
    vision: VisionRule,
    best: Arrangement,
) -> list[Arrangement]:
    """Arrangements of whole samples and of every legal uniform degree, as far as they could be better than ``best``.

    The adaptive search has compared those of its own group family by language time within its own number of
    micro-batches; here they may have more, vision counts, and so do degrees of no chain with the others.

    Args:
        batch: N samples.
        costs: their costs.
        problem: with the degrees of the adaptive strategy.
        settings: of the adaptive strategy.
        vision: what is done with the encoder.
        best: the adaptive arrangement.
    """
    assert costs.sharded is not None  # sharding_for has refused such costs
    found = []
    for degree in costs.sharded.degrees:
        if degree > settings.max_degree or problem.ranks % degree:
            continue
        if not feasible_degrees(problem, (degree,)).all() or not _could_be_better(batch, costs, degree, settings, best):
            continue
        strategy = strategy_named("whole-sample" if degree == 1 else f"uniform-{degree}")
        posed = replace(problem, sharding=sharding_for(strategy, batch, costs, problem.ranks, settings))
        for objective in objectives(batch, costs, posed, spread_vision=vision != "at-owner"):
            try:
                assignment = partition(objective, strategy)
            except InfeasibleError:
                continue
            found.append(arrange(batch, costs, posed, assignment, vision))
    return found


def _could_be_better(
    batch: BatchMetadata, costs: Costs, degree: int, settings: PlanSettings, best: Arrangement
) -> bool:
    """Whether even shares, or else the largest sample, leave room below ``best``; or as good with fewer bytes."""
    assert costs.sharded is not None
    column = costs.sharded.degrees.index(degree)
    ranks = best.language_ns.shape[1]
    if evens_attention(settings):
        cost, beside = -(-np.square(batch.tokens) // degree), 0
    else:
        cost = costs.sharded.language_ns[:, column]
        beside = int(best.vision_ns.sum()) // ranks if settings.sync == "layer" else 0
    least = max(int(cost.sum()) * degree // ranks, int(cost.max(initial=0))) + beside
    now = aim(batch, best, settings)
    sent = int(costs.sharded.sent_bytes[:, column].sum())
    return least < now or (least == now and sent < shared_bytes(costs, best.assignment.degree))
