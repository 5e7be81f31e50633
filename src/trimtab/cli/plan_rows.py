"""Plans every batch of a table under a strategy and measures plan and planner: one row of ``trimtab plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimtab.cli.plan_room import DeviceRoom
from trimtab.cost.architecture import Architecture
from trimtab.cost.embedding_exchange import token_bytes
from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.arrangement import arrange
from trimtab.planning.embedding_exchange import embedding_bytes_sent
from trimtab.planning.metrics import PlanMetrics, plan_metrics
from trimtab.planning.partition import partition
from trimtab.planning.settings import PlanSettings
from trimtab.planning.sharding_problem import largest_degree
from trimtab.planning.step import partition_problem, plan_step
from trimtab.planning.strategies import strategy_named
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan

RATIOS = ("step_ratio", "bound_ratio", "attention_ratio", "vision_ratio", "token_ratio", "attention_floor")

CostModel = Callable[[BatchMetadata], Costs]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all rows share.

    Attributes:
        architecture: the model.
        costs: cost of a batch.
        ranks: R.
        settings: of the planner; the strategy is each row's own.
    """

    architecture: Architecture
    costs: CostModel
    ranks: int
    settings: PlanSettings


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """One batch planned, with what planning took.

    Attributes:
        plan: its plan.
        metrics: how even it is, exchanges included.
        all_to_all_bytes: bytes that cross ranks, embeddings and shared samples, forward and backward.
        planning_ms: costs and language partition.
        vision_planning_ms: vision units.
    """

    plan: StepPlan
    metrics: PlanMetrics
    all_to_all_bytes: int
    planning_ms: float
    vision_planning_ms: float


def plan_batch(job: Job, batch: BatchMetadata, strategy_name: str) -> PlannedBatch:
    """Plan one batch.

    Raises:
        InfeasibleError: a cap cannot be met.
        SettingsError: the strategy does not honour the settings.
    """
    settings = replace(job.settings, strategy=strategy_name)
    strategy = strategy_named(strategy_name)
    plan = plan_step(batch, job.costs(batch), job.ranks, settings)
    started = time.perf_counter()
    costs = job.costs(batch)
    problem = partition_problem(batch, costs, job.ranks, settings)
    assignment = partition(problem, strategy, equal_microbatches=settings.equal_microbatches)
    partitioned = time.perf_counter()
    arrange(batch, costs, problem, assignment, strategy.vision)
    arranged = time.perf_counter()
    sent = embedding_bytes_sent(plan, batch, token_bytes(job.architecture))
    return PlannedBatch(
        plan=plan,
        metrics=plan_metrics(plan, batch, largest_degree(strategy, costs, settings)),
        all_to_all_bytes=2 * int(sent.sum()) + plan.shared_bytes,
        planning_ms=(partitioned - started) * 1e3,
        vision_planning_ms=(arranged - partitioned) * 1e3,
    )


def strategy_row(
    job: Job, batches: Iterable[BatchMetadata], strategy: str, room: DeviceRoom | None = None
) -> dict[str, Any]:
    """One strategy over all batches: a row of the JSON output, or why it cannot be; ``room`` where it is the cap."""
    try:
        planned = [plan_batch(job, batch, strategy) for batch in batches]
    except (InfeasibleError, SettingsError) as error:
        too_long = error.too_long if room is not None and isinstance(error, InfeasibleError) else None
        said = str(error) if room is None or too_long is None else room.exceeded(*too_long, strategy_named(strategy))
        return {"name": strategy, "infeasible": said}
    return {"name": strategy, **summary(planned)}


def summary(planned: Sequence[PlannedBatch]) -> dict[str, Any]:
    """Mean and maximum of every ratio, mean bytes a step, median and 95th percentile of planning times."""
    result: dict[str, Any] = {}
    for name in RATIOS:
        values = np.array([getattr(each.metrics, name) for each in planned])
        result[name] = {"mean": round(float(values.mean()), 6), "max": round(float(values.max()), 6)}
    result["all_to_all_bytes"] = int(np.mean([each.all_to_all_bytes for each in planned]))
    for name in ("planning_ms", "vision_planning_ms"):
        times = np.array([getattr(each, name) for each in planned])
        result[name] = {
            "median": round(float(np.median(times)), 4),
            "p95": round(float(np.percentile(times, 95)), 4),
        }
    return result
