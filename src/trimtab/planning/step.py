"""The one composer: from a step's metadata and costs to its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning.bounds import step_bound
from trimtab.planning.feasibility import check_fits, no_arrangement
from trimtab.planning.loads import at_speed, language_loads, step_time, vision_loads
from trimtab.planning.peers import as_is
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.settings import PlanSettings
from trimtab.planning.strategies import Strategy, solve, strategy_named
from trimtab.planning.vision import balanced_units, encodings, units_at_owners
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan, VisionUnits


@dataclass(frozen=True, eq=False, kw_only=True)
class _Arrangement:
    """A complete candidate: samples and vision units placed, loads and step time predicted."""

    assignment: Assignment
    micro_batches: int
    units: VisionUnits
    language_ns: NDArray[np.int64]
    vision_ns: NDArray[np.int64]
    step_ns: int


def plan_step(
    batch: BatchMetadata,
    costs: Costs,
    ranks: int,
    settings: PlanSettings,
    *,
    history: Sequence[int] | NDArray[np.int64] | None = None,
    rank_speed: Sequence[float] | NDArray[np.float64] | None = None,
) -> StepPlan:
    """Plan one optimizer step: rank and micro-batch of every sample, and the vision units of every rank.

    Args:
        batch: N samples in the order they came in.
        costs: what its samples and frames cost.
        ranks: R.
        settings: strategy, meeting points, caps and host constraints.
        history: int64 [R], nanoseconds each rank already spent since ranks last met (``sync="step"`` only); it
            counts in the plan's step time and bound.
        rank_speed: float [R], speed of each rank relative to the one the costs are stated for.

    Returns:
        A plan, never slower than the arrangement the samples came in where that one is legal and the strategy is ours.

    Raises:
        InfeasibleError: a sample exceeds a cap, or no arrangement within the caps was found.
        SettingsError: arguments contradict the settings, or the strategy does not honour them.
    """
    problem = _problem(batch, costs, ranks, settings, history, rank_speed)
    check_fits(problem, batch.sample_ids)
    at_first = as_is.arrange(problem, as_is.contiguous_ranks(len(batch), ranks))
    current = _arrange(batch, costs, problem, at_first, balance_vision=False)
    strategy = strategy_named(settings.strategy)
    if strategy.name == "as-is":
        return _plan(batch, costs, problem, settings, current, current)
    chosen = min(
        (
            _arrange(batch, costs, problem, assignment, balance_vision=settings.balance_vision)
            for assignment in _assignments(batch, costs, problem, strategy, settings)
        ),
        key=lambda arrangement: arrangement.step_ns,
    )
    if strategy.name == "whole-sample" and current.step_ns < chosen.step_ns and _legal(problem, at_first):
        chosen = current
    return _plan(batch, costs, problem, settings, chosen, current)


def _problem(
    batch: BatchMetadata,
    costs: Costs,
    ranks: int,
    settings: PlanSettings,
    history: Sequence[int] | NDArray[np.int64] | None,
    rank_speed: Sequence[float] | NDArray[np.float64] | None,
) -> PartitionProblem:
    if ranks < 1:
        raise SettingsError(f"ranks={ranks} must be at least 1")
    start = None if history is None else np.asarray(history, dtype=np.int64)
    speed = None if rank_speed is None else np.asarray(rank_speed, dtype=np.float64)
    if start is not None and settings.sync != "step":
        raise SettingsError(f"history needs sync='step': with sync={settings.sync!r} ranks met after each micro-batch")
    for name, values in (("history", start), ("rank_speed", speed)):
        if values is not None and values.shape != (ranks,):
            raise SettingsError(f"{name} has shape {values.shape}, expected one entry for each of {ranks} ranks")
    if speed is not None and not (np.isfinite(speed).all() and (speed > 0).all()):
        raise SettingsError(f"rank_speed must be positive and finite, found {speed.tolist()}")
    return PartitionProblem(
        cost_ns=costs.language_ns,
        tokens=batch.tokens,
        ranks=ranks,
        sync=settings.sync,
        max_tokens_per_micro_batch=settings.max_tokens_per_micro_batch,
        max_tokens_per_rank=settings.max_tokens_per_rank,
        equal_counts=settings.equal_counts,
        start_ns=start,
        rank_speed=speed,
    )


def _assignments(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, strategy: Strategy, settings: PlanSettings
) -> list[Assignment]:
    """Partitions worth comparing: by language cost, and by language plus own vision where vision stays put."""
    problems = [problem]
    if not settings.balance_vision and batch.num_visuals:
        own = np.zeros(len(batch), dtype=np.int64)
        np.add.at(own, batch.sample_of_visual, costs.vision_frame_ns * batch.grid_thw[:, 0])
        problems.append(replace(problem, cost_ns=problem.cost_ns + own))
    return [_fewest_micro_batches(each, strategy) for each in problems]


def _fewest_micro_batches(problem: PartitionProblem, strategy: Strategy) -> Assignment:
    """Solve with the smallest number of micro-batches that fits."""
    cap = problem.max_tokens_per_micro_batch
    fewest = 1 if cap is None else max(1, -(-int(problem.tokens.sum()) // (cap * problem.ranks)))
    most = fewest if cap is None else max(fewest, len(problem))
    for micro_batches in range(fewest, most + 1):
        assignment = solve(strategy, replace(problem, micro_batches=micro_batches))
        if assignment is not None:
            return assignment
    raise no_arrangement(problem, strategy.name)


def _arrange(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, assignment: Assignment, *, balance_vision: bool
) -> _Arrangement:
    """Place the vision units of an assignment and predict its loads."""
    micro_batches = int(assignment.micro_batch.max(initial=0)) + 1
    shape = (micro_batches, problem.ranks)
    language = language_loads(costs.language_ns, assignment.rank, assignment.micro_batch, shape)
    language = at_speed(language, problem.rank_speed)
    work = encodings(batch, costs.vision_frame_ns, assignment.rank, assignment.micro_batch)
    units = balanced_units(work, _base(language, problem)) if balance_vision else units_at_owners(work)
    vision = at_speed(vision_loads(costs.vision_frame_ns, units, shape), problem.rank_speed)
    return _Arrangement(
        assignment=assignment,
        micro_batches=micro_batches,
        units=units,
        language_ns=language,
        vision_ns=vision,
        step_ns=step_time(language, vision, problem.sync, problem.start_ns),
    )


def _base(language: NDArray[np.int64], problem: PartitionProblem) -> NDArray[np.int64]:
    """Time [M, R] that vision shares a meeting point with."""
    if problem.sync == "layer":
        return np.zeros_like(language)
    if problem.sync == "micro_batch":
        return language
    total = language.sum(axis=0) + (0 if problem.start_ns is None else problem.start_ns)
    return np.broadcast_to(total, language.shape)


def _legal(problem: PartitionProblem, assignment: Assignment) -> bool:
    """Whether an arrangement meets the rank cap and the equal counts; micro-batch caps it was made under."""
    if problem.equal_counts and assignment.micro_batch.any():
        return False
    if problem.max_tokens_per_rank is None:
        return True
    held = np.zeros(problem.ranks, dtype=np.int64)
    np.add.at(held, assignment.rank, problem.tokens)
    return bool((held <= problem.max_tokens_per_rank).all())


def _plan(
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    settings: PlanSettings,
    chosen: _Arrangement,
    current: _Arrangement,
) -> StepPlan:
    _, distinct = np.unique(batch.visual_keys, return_index=True)
    bound = step_bound(
        costs.language_ns,
        costs.vision_frame_ns[distinct],
        batch.grid_thw[distinct, 0],
        problem.ranks,
        chosen.micro_batches,
        problem.sync,
        start=problem.start_ns,
        speed=problem.rank_speed,
    )
    return StepPlan(
        ranks=problem.ranks,
        micro_batches=chosen.micro_batches,
        rank=chosen.assignment.rank,
        degree=np.ones(len(batch), dtype=np.int64),
        micro_batch=chosen.assignment.micro_batch,
        units=chosen.units,
        language_ns=chosen.language_ns,
        vision_ns=chosen.vision_ns,
        step_ns=chosen.step_ns,
        current_step_ns=current.step_ns,
        lower_bound_ns=bound,
        sync=problem.sync,
        denominators={"tokens": int(batch.loss_tokens.sum()), "sequences": int((batch.loss_tokens > 0).sum())},
        strategy=settings.strategy,
    )
