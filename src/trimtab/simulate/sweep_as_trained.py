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
    if not best.fits or not is_trained_otherwise(job, strategy, best.result.shared_by):
        return None
    if whole.kept_bytes >= whole.memory_limit:
        return None

    def run(changed: Overrides, degree: int | None = None) -> StrategyResult:
        said = " ".join(["as trained", *(f"{name}={value}" for name, value in changed.items())])
        return simulate_strategy(
            *as_trained(job_with(changed), strategy, degree), progress=lambda at: progress(f"{said}: {at}")
        )

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
    if found.fits:
        return Nearest(job=job, remark=_beside(found, best), step_ms=found.result.step_ms)
    reason = f"which, simulated, does not fit in memory: {found.result.out_of_memory[0].sizes}"
    return Nearest(job=job, remark=reason + _degree_that_fits(job, strategy, lambda at: run(found.settings, at)))


def _beside(found: Recommendation, best: Recommendation) -> str:
    """The command's step beside the one recommended."""
    changes = " ".join(f"{name}={value}" for name, value in found.settings.items()) or "the settings as given"
    ours, theirs = seconds_of(found.result.step_ms), seconds_of(best.result.step_ms)
    said = f"simulated too: {ours} s a step with {changes}, beside those {theirs} s"
    return f"{said}; the command is the faster" if better(found.result, best.result) else said


def _degree_that_fits(job: Job, strategy: SimulatedStrategy, run: Callable[[int], StrategyResult]) -> str:
    """The degree with which trimtab's own plans fit, where the strategy's is lower."""
    whole = on_whole_devices(job)
    largest = trained_degree(whole, strategy_named("all", job.scenario.task, job.scenario.sync))
    if strategy.plan == "as-is" or largest <= trained_degree(whole, strategy):
        return ""
    with suppress(*CANNOT_BE):
        if not run(largest).out_of_memory:
            return f"; with balance.max_degree={largest} it does"
    return ""
