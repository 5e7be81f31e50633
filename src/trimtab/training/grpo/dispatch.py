"""Which rank answers which prompt: most by plan, the rest by whoever is idle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.training.grpo.rollout import RolloutPlan


def plan_rollout(
    prompts: BatchMetadata, costs: Costs, ranks: int, settings: PlanSettings, *, shared_share: float
) -> RolloutPlan:
    """Plan a rollout.

    Args:
        prompts: P prompts.
        costs: predicted, the expected replies included.
        ranks: R.
        settings: of the plan; it has one micro-batch, since a rank needs all its visuals at once.
        shared_share: share of each rank's predicted work whose prompts, the cheapest, any rank may take.
    """
    strategy = (
        "whole-sample" if settings.strategy == "adaptive" else settings.strategy
    )  # a reply is decoded on one rank
    whole = replace(settings, max_tokens_per_micro_batch=None, strategy=strategy, max_degree=1)
    plan = plan_step(prompts, costs, ranks, whole)
    order = np.lexsort((np.arange(len(prompts)), -costs.language_ns))
    shared = _cheapest(costs.language_ns, plan.rank, order, ranks, shared_share) if ranks > 1 else np.zeros(0, np.int64)
    own = tuple(tuple(row for row in order.tolist() if plan.rank[row] == rank and row not in set(shared.tolist()))
                for rank in range(ranks))  # fmt: skip
    others = [(row, rank) for row in shared.tolist() for rank in range(ranks) if rank != plan.rank[row]]
    copies = np.array([row for row, _ in others], dtype=np.int64)
    prompt = np.concatenate([np.arange(len(prompts)), copies])
    placed = replace(
        plan,
        rank=np.concatenate([plan.rank, np.array([rank for _, rank in others], dtype=np.int64)]),
        degree=np.ones(len(prompt), dtype=np.int64),
        micro_batch=np.zeros(len(prompt), dtype=np.int64),
    )
    return RolloutPlan(
        plan=placed,
        batch=prompts.take(prompt),
        prompt=prompt,
        own=own,
        shared=tuple(row for row in order.tolist() if row in set(shared.tolist())),
    )


def _cheapest(
    cost: NDArray[np.int64], rank: NDArray[np.int64], order: NDArray[np.int64], ranks: int, share: float
) -> NDArray[np.int64]:
    """Each rank's cheapest prompts that together stay within ``share`` of its work."""
    chosen: list[int] = []
    for index in range(ranks):
        rows = order[rank[order] == index][::-1]
        within = np.cumsum(cost[rows]) <= share * cost[rows].sum()
        chosen += rows[within].tolist()
    return np.array(sorted(chosen), dtype=np.int64)
