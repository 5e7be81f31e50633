"""What the trainer makes of a simulated strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.planning.sequence_slices import DEFAULT_PACKING
from trimtab.simulate.job import Job
from trimtab.simulate.merit import OURS
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named

LEAST_PREFETCH = 1
"""The trainer always prepares a step ahead."""


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """What the trainer's command runs, where that is not what was simulated.

    Attributes:
        job: with the settings the command carries.
        remark: what simulating it says.
        degree: most ranks that share a sample, where ``max_degree`` was swept; None: as ``trained_degree``.
        step_ms: of the command's step, or None where it does not fit in memory or cannot be.
    """

    job: Job
    remark: str
    degree: int | None = None
    step_ms: float | None = None


def on_whole_devices(job: Job) -> Job:
    """The job as the trainer has it: every device a rank, state sharded over all, micro-batches that fit one device."""
    shards = job.scenario.shards
    if shards != job.scenario.ranks:
        shards = None
    scenario, asked = replace(job.scenario, tensor_parallel=1, shards=shards), job.scenario.micro_batch_tokens
    whole = replace(job, scenario=scenario)
    if scenario == job.scenario or asked is None:
        return whole
    return replace(job, scenario=replace(scenario, micro_batch_tokens=min(asked, whole.room_tokens)))


def trained_degree(job: Job, strategy: SimulatedStrategy) -> int:
    """Most ranks that share a sample, as the trainer allows it: packs run whole, and so does what meets once a step."""
    if job.scenario.pack_length is not None or job.scenario.sync == "step":
        return 1
    return job.largest_degree(strategy)


def trained_share(job: Job, degree: int) -> int:
    """Tokens of a rank's part of the longest sample that any step may hold."""
    longest = int(job.workload.samples.tokens.max(initial=1))
    longest += job.scenario.rollout.max_tokens if job.scenario.task == "grpo" else 0
    return -(-longest // degree)


def trained_workers(job: Job) -> int:
    """The controller's decode processes, as each rank's share: rank 0 has those of all ranks."""
    return max(1, job.scenario.loading.controller_workers // job.scenario.ranks)


def as_trained(job: Job, strategy: SimulatedStrategy, degree: int | None = None) -> tuple[Job, SimulatedStrategy]:
    """What to simulate to see what the trainer's command does: trimtab's own plans, or none, and its loading.

    Args:
        job: with the settings to run.
        strategy: simulated with them.
        degree: most ranks that share a sample; None: as ``trained_degree``.
    """
    whole = on_whole_devices(job)
    scenario, own = whole.scenario, strategy
    as_named = degree is None and strategy.name in OURS
    degree = degree or trained_degree(whole, strategy)
    if strategy.plan != "as-is" and not as_named:
        own = strategy_named("all" if degree > 1 else "whole-sample", scenario.task, scenario.sync)
    controller = strategy.loader == "controller"
    own = replace(own, loader="controller" if controller else "shadow")
    loading = replace(scenario.loading, prefetch=max(LEAST_PREFETCH, scenario.loading.prefetch))
    if controller:
        loading = replace(loading, controller_workers=trained_workers(whole) * scenario.ranks)
    tokens = scenario.micro_batch_tokens
    if tokens is not None and scenario != job.scenario:
        tokens = max(tokens, trained_share(whole, degree))
    scenario = replace(
        scenario,
        max_degree=degree,
        loading=loading,
        micro_batch_tokens=tokens,
        balance_vision=scenario.balance_vision or own.balance_vision,
        pack_below=DEFAULT_PACKING.below,
        pack_tokens=DEFAULT_PACKING.tokens,
    )
    return replace(whole, scenario=scenario), own


def is_trained_otherwise(job: Job, strategy: SimulatedStrategy, shared_by: int) -> bool:
    """Whether the trainer's command runs something else than was simulated.

    Args:
        job: with the settings to run.
        strategy: simulated with them.
        shared_by: most ranks that shared a sample then.
    """
    if strategy.packing is not None:
        return False
    trained, own = as_trained(job, strategy)
    simulated = job.scenario
    alike = replace(trained.scenario, max_degree=simulated.max_degree)  # the ranks that shared tell of it
    if shared_by == 1:  # nothing was exchanged
        alike = replace(alike, pack_below=simulated.pack_below, pack_tokens=simulated.pack_tokens)
    same_plans = replace(own, name=strategy.name) == strategy
    return not (alike == simulated and same_plans and shared_by <= trained.scenario.max_degree)
