"""The one composer: from a step's metadata and costs to its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning import whole_packs
from trimtab.planning.arrangement import Arrangement, arrange
from trimtab.planning.bounds import step_bound
from trimtab.planning.choice import choose
from trimtab.planning.collectives import check_order, step_order
from trimtab.planning.embedding_exchange import embedding_bytes_sent
from trimtab.planning.feasibility import check_fits
from trimtab.planning.loads import shared_bytes
from trimtab.planning.locality import relabel, sample_bytes, stay_put
from trimtab.planning.objectives import objectives
from trimtab.planning.partition import partition
from trimtab.planning.peers import as_is
from trimtab.planning.plainer import plainer_arrangements
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.settings import PlanSettings
from trimtab.planning.sharding_problem import any_degree_bound, sharding_for
from trimtab.planning.strategies import VisionRule, strategy_named
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.setting_checks import check_least


def plan_step(
    batch: BatchMetadata,
    costs: Costs,
    ranks: int,
    settings: PlanSettings,
    *,
    history: Sequence[int] | NDArray[np.int64] | None = None,
    rank_speed: Sequence[float] | NDArray[np.float64] | None = None,
    current_rank: Sequence[int] | NDArray[np.int64] | None = None,
    pack_of: Sequence[int] | NDArray[np.int64] | None = None,
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
        current_rank: int64 [N], rank each sample lies on already; then, among plans about as fast, the one that moves
            fewest bytes is taken. None: nothing is loaded yet, and the current arrangement is contiguous equal blocks.
        pack_of: int64 [N], pack of each sample, where a packer chose which samples run together; each pack then runs
            whole and alone, and the current arrangement is the one it was dealt in (``whole_packs.dealt``).

    Returns:
        A plan; our strategy's is never slower than the current arrangement where that one is legal.

    Raises:
        InfeasibleError: a sample exceeds a cap, or no arrangement within the caps was found.
        InvalidPlanError: with ``check_order``, ranks would wait for each other for ever.
        SettingsError: arguments contradict the settings, or the strategy does not honour them.
    """
    problem = partition_problem(batch, costs, ranks, settings, history=history, rank_speed=rank_speed)
    check_fits(problem, batch.sample_ids, costs.legal_degrees)
    strategy = strategy_named(settings.strategy)
    if pack_of is not None:
        if strategy.shards:
            raise SettingsError(f"pack_of and strategy {strategy.name!r} exclude each other: packs run whole")
        if current_rank is not None:
            raise SettingsError("pack_of and current_rank exclude each other: packs are planned before they are loaded")
        packs = whole_packs.checked_packs(pack_of, len(batch), equal_counts=settings.equal_counts)
        return _plan_packs(batch, costs, problem, settings, packs)
    at_first = (
        as_is.contiguous_ranks(len(batch), ranks) if current_rank is None else _on_ranks(current_rank, batch, ranks)
    )
    problem = replace(problem, at_first=at_first)
    current = arrange(batch, costs, problem, as_is.pack_in_order(problem, at_first), "at-owner")
    current = _with_exchange(batch, costs, problem, settings, current)
    if strategy.name == "as-is":
        return _plan(batch, costs, problem, settings, current, current)
    nearest = at_first if strategy.name == "whole-sample" and current_rank is not None else None
    candidates = _candidates(batch, costs, problem, settings, current, nearest)
    if costs.exchange is not None and strategy.vision == "spread" and settings.balance_vision:
        at_owners = replace(settings, balance_vision=False)
        candidates += _candidates(batch, costs, problem, at_owners, current, nearest)
    chosen = choose(batch, costs, candidates, settings, nearest)
    return _plan(batch, costs, problem, settings, chosen, current)


def _with_exchange(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, settings: PlanSettings, arrangement: Arrangement
) -> Arrangement:
    """The arrangement once embeddings are sent, as far as what that takes is known."""
    if costs.exchange is None:
        return arrangement
    plan = _plan(batch, costs, problem, settings, arrangement, arrangement)
    time_ns = costs.exchange.step_ns(embedding_bytes_sent(plan, batch, costs.exchange.token_bytes))
    return replace(arrangement, step_ns=arrangement.step_ns + time_ns, exchange_ns=time_ns)


def _candidates(
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    settings: PlanSettings,
    current: Arrangement,
    nearest: NDArray[np.int64] | None,
) -> list[Arrangement]:
    """What the strategy found and, for ours, what its plan must not be slower than.

    ``nearest`` (int64 [N]) are the ranks samples lie on, where staying there counts.
    """
    strategy = strategy_named(settings.strategy)
    assignments = [
        partition(each, strategy, equal_microbatches=settings.equal_microbatches)
        for each in objectives(batch, costs, problem, spread_vision=settings.balance_vision)
    ]
    if nearest is not None:
        assignments = _nearer(batch, problem, assignments, nearest, settings.locality_tolerance)
    vision: VisionRule = strategy.vision if settings.balance_vision else "at-owner"
    candidates = [arrange(batch, costs, problem, assignment, vision) for assignment in assignments]
    candidates = [_with_exchange(batch, costs, problem, settings, candidate) for candidate in candidates]
    if strategy.name == "adaptive":
        plainer = plainer_arrangements(batch, costs, problem, settings, vision, candidates[0])
        candidates += [_with_exchange(batch, costs, problem, settings, candidate) for candidate in plainer]
    if strategy.name in ("adaptive", "whole-sample") and _legal(problem, current.assignment):
        candidates.append(current)
    return candidates


def _plan_packs(
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    settings: PlanSettings,
    pack_of: NDArray[np.int64],
) -> StepPlan:
    """The step's plan where packs are indivisible."""
    strategy = strategy_named(settings.strategy)
    current = arrange(batch, costs, problem, whole_packs.dealt(pack_of, problem.ranks), "at-owner")
    current = _with_exchange(batch, costs, problem, settings, current)
    candidates = [current]
    if strategy.name != "as-is":
        vision: VisionRule = strategy.vision if settings.balance_vision else "at-owner"
        posed = objectives(batch, costs, problem, spread_vision=settings.balance_vision)
        assignments = [whole_packs.spread(each, pack_of, strategy) for each in posed]
        placed = [arrange(batch, costs, problem, assignment, vision) for assignment in assignments]
        balanced = [_with_exchange(batch, costs, problem, settings, arrangement) for arrangement in placed]
        candidates = [*balanced, current] if _legal(problem, current.assignment) else balanced
    chosen = choose(batch, costs, candidates, settings, None)
    items_ns = whole_packs.sums(costs.language_ns, pack_of)
    return _plan(batch, costs, problem, settings, chosen, current, items_ns=items_ns)


def partition_problem(
    batch: BatchMetadata,
    costs: Costs,
    ranks: int,
    settings: PlanSettings,
    *,
    history: Sequence[int] | NDArray[np.int64] | None = None,
    rank_speed: Sequence[float] | NDArray[np.float64] | None = None,
) -> PartitionProblem:
    """The language partition that ``plan_step`` solves first.

    Raises:
        SettingsError: arguments contradict the settings or each other.
    """
    check_least("ranks", ranks, 1)
    _check_costs(batch, costs)
    start = None if history is None else np.asarray(history, dtype=np.int64)
    speed = None if rank_speed is None else np.asarray(rank_speed, dtype=np.float64)
    if start is not None and settings.sync != "step":
        raise SettingsError(f"history needs sync='step': with sync={settings.sync!r} ranks met after each micro-batch")
    for name, values in (("history", start), ("rank_speed", speed)):
        if values is not None and values.shape != (ranks,):
            raise SettingsError(f"{name} has shape {values.shape}, expected one entry for each of {ranks} ranks")
    if start is not None and (start < 0).any():
        raise SettingsError(f"history must not be negative, found {start.min()}")
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
        sharding=sharding_for(strategy_named(settings.strategy), batch, costs, ranks, settings),
    )


def _check_costs(batch: BatchMetadata, costs: Costs) -> None:
    for name, values, count in (
        ("language_ns", costs.language_ns, len(batch)),
        ("vision_frame_ns", costs.vision_frame_ns, batch.num_visuals),
    ):
        if values.dtype != np.int64:
            raise SettingsError(f"costs.{name} is {values.dtype}; give whole nanoseconds as int64")
        if values.shape != (count,):
            raise SettingsError(f"costs.{name} has shape {values.shape}, expected one entry for each of {count}")
        if (values < 0).any():
            row = int(values.argmin())
            raise SettingsError(
                f"costs.{name} must not be negative (nor pass the range of int64), found {values[row]} in row {row}"
            )


def _on_ranks(current_rank: Sequence[int] | NDArray[np.int64], batch: BatchMetadata, ranks: int) -> NDArray[np.int64]:
    placed = np.asarray(current_rank, dtype=np.int64)
    if placed.shape != (len(batch),) or (len(placed) and not (placed.min() >= 0 and placed.max() < ranks)):
        raise SettingsError(f"current_rank must hold a rank below {ranks} for each of {len(batch)} samples")
    return placed


def _nearer(
    batch: BatchMetadata,
    problem: PartitionProblem,
    assignments: list[Assignment],
    current_rank: NDArray[np.int64],
    tolerance: float,
) -> list[Assignment]:
    """The assignments named after the ranks that hold most of them, and one that exchanges only what it must."""
    sizes = sample_bytes(batch)
    named = [relabel(problem, assignment, current_rank, sizes) for assignment in assignments]
    staying = stay_put(problem, current_rank, tolerance)
    return named if staying is None else [*named, staying]


def _legal(problem: PartitionProblem, assignment: Assignment) -> bool:
    """Whether the current arrangement meets the caps and the equal counts.

    It is cut at the micro-batch cap, but a sample that only fits sharded breaks it.
    """
    cap = problem.max_tokens_per_micro_batch
    if cap is not None and problem.tokens.max(initial=0) > cap:
        return False
    held = np.zeros(problem.ranks, dtype=np.int64)
    np.add.at(held, assignment.rank, problem.tokens)
    if problem.max_tokens_per_rank is not None and held.max(initial=0) > problem.max_tokens_per_rank:
        return False
    micro_batches = int(assignment.micro_batch.max(initial=0)) + 1
    counts = np.bincount(
        assignment.rank * micro_batches + assignment.micro_batch, minlength=problem.ranks * micro_batches
    )
    return not problem.equal_counts or int(counts.max() - counts.min()) <= 1


def _plan(
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    settings: PlanSettings,
    chosen: Arrangement,
    current: Arrangement,
    *,
    items_ns: NDArray[np.int64] | None = None,
) -> StepPlan:
    """The plan of an arrangement; ``items_ns`` is the language cost of what stays whole, samples by default."""
    _, distinct = np.unique(batch.visual_keys, return_index=True)
    degree = chosen.assignment.degree
    bound = step_bound(
        costs.language_ns if items_ns is None else items_ns,
        costs.vision_frame_ns[distinct],
        batch.grid_thw[distinct, 0],
        problem.ranks,
        chosen.micro_batches,
        problem.sync,
        start=problem.start_ns,
        speed=problem.rank_speed,
        sharded=None if problem.sharding is None else any_degree_bound(problem, costs),
    )
    plan = StepPlan(
        ranks=problem.ranks,
        micro_batches=chosen.micro_batches,
        rank=chosen.assignment.rank,
        degree=np.ones(len(batch), dtype=np.int64) if degree is None else degree,
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
        exchange_ns=chosen.exchange_ns,
        unsharded_ns=None if degree is None else int(costs.language_ns.sum() + chosen.vision_ns.sum()),
        shared_bytes=shared_bytes(costs, degree),
    )
    if settings.check_order:
        check_order(step_order(plan, vision_gathers=1, language_gathers=1, tokens=batch.tokens))
    return plan
