"""What the trainer makes of a simulated strategy, and whether that fits in memory."""

from __future__ import annotations

from dataclasses import replace

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.simulate.job import Job
from trimtab.simulate.merit import OURS
from trimtab.simulate.run import simulate
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named


def on_whole_devices(job: Job) -> Job:
    """The job as the trainer has it: every device a rank, state sharded over all, micro-batches that fit one device."""
    scenario, asked = replace(job.scenario, tensor_parallel=1, shards=None), job.scenario.micro_batch_tokens
    whole = replace(job, scenario=scenario)
    if scenario == job.scenario or asked is None:
        return whole
    return replace(job, scenario=replace(scenario, micro_batch_tokens=min(asked, whole.room_tokens)))


def trained_degree(job: Job, strategy: SimulatedStrategy) -> int:
    """Most ranks that share a sample, as the trainer allows it: packs run whole, and so does what meets once a step."""
    if job.scenario.pack_length is not None or job.scenario.sync == "step":
        return 1
    return job.largest_degree(strategy)


def unfit_as_trained(job: Job, name: str) -> str:
    """Why what the trainer has instead of a strategy does not fit, and what does; "" where it fits or is the same.

    The nearest is simulated: plans of trimtab's own, at the degree and with the loading that the command sets.

    Args:
        job: with the settings to run.
        name: of the strategy.
    """
    strategy = strategy_named(name, job.scenario.task, job.scenario.sync)
    if strategy.packing is not None or strategy.plan == "as-is":
        return ""
    own = "adaptive-only" if job.scenario.task == "grpo" and strategy.loader == "controller" else "all"
    whole = on_whole_devices(job)
    degree, largest = (trained_degree(whole, each) for each in (strategy, strategy_named(own)))
    if name in OURS and whole.scenario == job.scenario and degree == job.largest_degree(strategy):
        return ""
    if not (reason := _why_unfit(whole, own, degree)):
        return ""
    if largest > degree and not _why_unfit(whole, own, largest):
        return f"{reason}; with balance.max_degree={largest} it does"
    return reason


def _why_unfit(whole: Job, own: str, degree: int) -> str:
    """Why plans of trimtab's own do not fit, or ""."""
    try:
        scenario = replace(whole.scenario, strategies=(own,), max_degree=degree)
        overflows = simulate(replace(whole, scenario=scenario)).strategies[0].out_of_memory
    except (InfeasibleError, SettingsError) as error:
        return f"which cannot be: {error}"
    return f"which, simulated, does not fit in memory: {overflows[0].sizes}" if overflows else ""
