"""The trainer's settings that a simulated strategy stands for."""

from __future__ import annotations

from trimtab.simulate.job import Job
from trimtab.simulate.strategies import strategy_named


def how_to_run(job: Job, name: str) -> str:
    """One line: a command of trimtab's, or what of it comes nearest to another system's strategy.

    Args:
        job: with the settings to run.
        name: of the strategy.
    """
    scenario = job.scenario
    if scenario.pipeline.stages:
        tokens = scenario.pipeline.pack_tokens
        cut = f"trimtab stages --stages {scenario.pipeline.stages} --tokens {tokens} ..."
        return f"cut and recompute: {cut}; packs: packing=isf or best"
    command = f"trimtab train {scenario.task} ... {' '.join(_settings(job, name))}"
    if name in ("all", "whole-sample"):
        return f"run: {command}"
    return f"{name} is another system's way; trimtab's nearest: {command}"


def _settings(job: Job, name: str) -> list[str]:
    scenario, loading = job.scenario, job.scenario.loading
    shares = name not in ("whole-sample", "as-is", "loongforge") and scenario.sync != "step"
    longest = int(job.workload.samples.tokens.max(initial=1))
    planned = strategy_named("all" if shares else "whole-sample", scenario.task, scenario.sync)
    return [
        f"loader.mode=shadow loader.workers={loading.workers_per_rank} loader.prefetch={loading.prefetch}",
        f"balance.mode=on balance.sync={scenario.sync} balance.max_degree={scenario.max_degree if shares else 1}",
        f"recompute={'true' if scenario.recompute else 'false'}",
        f"max_tokens_per_micro_batch={job.micro_batch_tokens(planned, longest)}",
    ]
