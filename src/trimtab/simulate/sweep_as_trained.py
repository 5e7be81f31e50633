"""The settings swept again on what the trainer makes of the strategy recommended, where that is something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from trimtab.simulate.as_trained import Nearest, as_trained, is_trained_otherwise, on_whole_devices, trained_degree
from trimtab.simulate.choices import CHOICES
from trimtab.simulate.job import Job
from trimtab.simulate.merit import better
from trimtab.simulate.run import StrategyResult, simulate_strategy
from trimtab.simulate.simulated_step import seconds_of
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.sweep import CANNOT_BE, Overrides, Recommendation, SweepPoint, recommend, sweep

_OTHERS_CHOICES = frozenset({"balance_vision", "pack_below", "pack_tokens", "shards", "tensor_parallel"})
"""The trainer has none of them."""


def nearest_as_trained(
    best: Recommendation,
    swept: Mapping[str, Sequence[str]],
    job_with: Callable[[Overrides], Job],
    progress: Callable[[str], None],
) -> Nearest | None:
    """What the command of a recommendation should carry, and what it then takes.

    None where it runs what was simulated, and where no setting would help: the model's state alone does not fit.

    Args:
        best: the recommendation.
        swept: values of each setting.
        job_with: makes the job with settings changed.
        progress: told what is simulated.
    """
    job = job_with(best.settings)
    strategy, whole = strategy_named(best.strategy, job.scenario.task, job.scenario.sync), on_whole_devices(job)
    if not best.fits or not runs_otherwise(best, job):
        return None
    if whole.kept_bytes >= whole.memory_limit:
        return None

    def run(changed: Overrides, degree: int | None = None) -> StrategyResult:
        said = " ".join(["as trained", *(f"{name}={value}" for name, value in changed.items())])
        job = job_with(changed)
        trained = as_trained(job, strategy, degree or _swept_degree(job, strategy, changed))
        return simulate_strategy(*trained, progress=lambda at: progress(f"{said}: {at}"))

    try:
        base = run({})
    except CANNOT_BE as error:
        return Nearest(job=job, remark=f"which cannot be: {error}")
    points: dict[str, list[SweepPoint]] = {}
    choices = {name: values for name, values in swept.items() if name in CHOICES - _OTHERS_CHOICES}
    with suppress(*CANNOT_BE):  # no value can be
        points = sweep(choices, run).points
    found = recommend(base, points, run)
    job = job_with(found.settings)
    degree = _swept_degree(job, strategy, found.settings)
    if found.fits:
        return Nearest(job=job, remark=_beside(found, best), degree=degree, step_ms=found.result.step_ms)
    reason = f"which, simulated, does not fit in memory: {found.result.out_of_memory[0].sizes}"
    reason += _degree_that_fits(job, strategy, degree, lambda at: run(found.settings, at))
    return Nearest(job=job, remark=reason, degree=degree)


def runs_otherwise(best: Recommendation, job: Job) -> bool:
    """Whether the command runs something else than was simulated.

    Args:
        best: the recommendation.
        job: with its settings.
    """
    strategy = strategy_named(best.strategy, job.scenario.task, job.scenario.sync)
    return is_trained_otherwise(job, strategy, best.result.shared_by)


def _swept_degree(job: Job, strategy: SimulatedStrategy, changed: Overrides) -> int | None:
    """Most ranks that share a sample in trimtab's own plans, where that is varied; None: as the strategy has it."""
    if "max_degree" not in changed or strategy.plan == "as-is":
        return None
    return _largest_degree(job)


def _largest_degree(job: Job) -> int:
    return trained_degree(on_whole_devices(job), strategy_named("all", job.scenario.task, job.scenario.sync))


def _beside(found: Recommendation, best: Recommendation) -> str:
    """The command's step beside the one recommended."""
    changes = " ".join(f"{name}={value}" for name, value in found.settings.items()) or "the settings as given"
    ours, theirs = seconds_of(found.result.step_ms), seconds_of(best.result.step_ms)
    said = f"simulated too: {ours} s a step with {changes}, beside those {theirs} s"
    if better(found.result, best.result):
        return f"{said}; the command is the faster"
    if better(best.result, found.result):
        more = best.result.tokens_per_gpu_s / found.result.tokens_per_gpu_s - 1
        return f"{said}; the command is the slower, {more:.0%} more time a token"
    return said


def _degree_that_fits(
    job: Job, strategy: SimulatedStrategy, degree: int | None, run: Callable[[int], StrategyResult]
) -> str:
    """The degree with which trimtab's own plans fit, where that of the command is lower."""
    largest = _largest_degree(job)
    if strategy.plan == "as-is" or largest <= (degree or trained_degree(on_whole_devices(job), strategy)):
        return ""
    with suppress(*CANNOT_BE):
        if not run(largest).out_of_memory:
            return f"; with balance.max_degree={largest} it does"
    return ""
