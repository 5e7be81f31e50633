"""The ratios of the glossary (``schema.reports.GLOSSARY``) for a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bounds import attention_floor
from trimtab.planning.loads import sharded_loads
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


@dataclass(frozen=True, kw_only=True)
class PlanMetrics:
    """How even a plan is; see the glossary.

    Attributes:
        step_ratio: predicted step time over the even share of its work.
        bound_ratio: predicted step time over its lower bound.
        attention_ratio: squared tokens of the busiest rank over the mean.
        vision_ratio: encoder time of the busiest rank over the mean.
        token_ratio: tokens of the fullest rank over the mean.
        attention_floor: least attention ratio of any plan at the degrees allowed.
    """

    step_ratio: float
    bound_ratio: float
    attention_ratio: float
    vision_ratio: float
    token_ratio: float
    attention_floor: float


def plan_metrics(plan: StepPlan, batch: BatchMetadata, max_degree: int = 1) -> PlanMetrics:
    """Ratios of a plan.

    Args:
        plan: the plan.
        batch: its samples.
        max_degree: largest degree a sample may have (``sharding_problem.largest_degree``), for the floor.
    """
    squares = -(-np.square(batch.tokens) // plan.degree)
    return PlanMetrics(
        step_ratio=_ratio(plan.step_ns, plan.work_ns / plan.ranks),
        bound_ratio=_ratio(plan.step_ns, plan.lower_bound_ns),
        attention_ratio=largest_over_mean(_on_ranks(plan, squares)),
        vision_ratio=largest_over_mean(plan.vision_ns.sum(axis=0)),
        token_ratio=largest_over_mean(_on_ranks(plan, -(-batch.tokens // plan.degree))),
        attention_floor=attention_floor(batch.tokens, plan.ranks, max_degree),
    )


def largest_over_mean(loads: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Largest rank over the mean; 1 where there is no load at all."""
    return _ratio(float(loads.max()), float(loads.mean()))


def _on_ranks(plan: StepPlan, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums over the step [R] of samples' values (int64 [N], of each rank of their nodes)."""
    one = np.zeros(len(plan), dtype=np.int64)
    return np.asarray(sharded_loads(values, plan.rank, one, plan.degree, (1, plan.ranks))[0])


def _ratio(value: float, reference: float) -> float:
    return float(value / reference) if reference else 1.0
