"""Tables of ``trimtab simulate`` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from trimtab.simulate.job import Job
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.simulated_step import PHASES
from trimtab.simulate.sweep import Recommendation, SweepPoint

_BAR = 30


def print_simulation(job: Job, found: Simulation) -> None:
    """A row for each strategy, and what overflows."""
    console, grpo = Console(), job.scenario.task == "grpo"
    phases = PHASES if grpo else ("data", "update")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True)
    names = {"rollout": "roll-\nout s", "inference": "infer-\nence s"}
    for heading in ("step\ns", "gain", *(names.get(phase, f"{phase}\ns") for phase in phases)):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("tokens/\nGPU s", "att.\nratio", "fits", "plan\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    slowest = found.strategies[0].tokens_per_gpu_s
    for row in found.strategies:
        table.add_row(
            row.name,
            _seconds(row.step_ms),
            f"{row.tokens_per_gpu_s / slowest:.2f}" if slowest else "-",
            *(_seconds(row.phases[phase]) for phase in phases),
            f"{row.tokens_per_gpu_s:.0f}",
            f"{row.attention_ratio:.2f}",
            "no" if row.out_of_memory else "yes",
            f"{row.planning_ms:.0f}",
        )
    console.print(_headline(job), highlight=False, soft_wrap=True)
    console.print(table)
    for row in found.strategies:
        for each in row.out_of_memory:
            console.print(f"{row.name} out of memory: {each}", highlight=False, markup=False, soft_wrap=True)
    for name, reason in found.refused.items():
        console.print(f"{name} left out: {reason}", highlight=False, markup=False, soft_wrap=True)


def _headline(job: Job) -> str:
    scenario = job.scenario
    packs = scenario.pack_length is not None or scenario.pipeline.stages > 0
    samples = f"{scenario.batch_size} {'packs' if packs else 'samples'}"
    if scenario.task == "grpo":
        samples = f"{scenario.batch_size} prompts of {scenario.rollout.replies} replies"
    return (
        f"SIMULATED {scenario.name}: {scenario.task} of {job.architecture.name} on {scenario.ranks} {job.cluster.name}"
        f", {samples} a step, {job.workload.description}; means of {scenario.steps} steps. Planning ran here."
    )


def print_sweep(base: StrategyResult, points: Mapping[str, Sequence[SweepPoint]]) -> None:
    """A small table with bars for each setting."""
    console = Console()
    longest = max((point.result.step_ms for tried in points.values() for point in tried), default=1.0)
    for name, tried in points.items():
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"{base.name}: {name}", title_justify="left")
        table.add_column("value", justify="right", no_wrap=True)
        for heading in ("step s", "to given", "tokens/GPU/s"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("fits")
        table.add_column("", no_wrap=True)
        for point in tried:
            result = point.result
            table.add_row(
                point.settings[name],
                _seconds(result.step_ms),
                f"{result.step_ms / base.step_ms - 1:+.1%}" if base.step_ms else "-",
                f"{result.tokens_per_gpu_s:.0f}",
                "no" if result.out_of_memory else "yes",
                "█" * round(_BAR * result.step_ms / longest) if longest else "",
            )
        console.print(table)


def print_recommendation(job: Job, found: Simulation, best: Recommendation) -> None:
    """What to run, what it would bring, and how the trainer is told so."""
    console = Console()
    changes = " ".join(f"{name}={value}" for name, value in best.settings.items()) or "the settings as given"
    first = found.strategies[0]
    gain = f"{first.step_ms / best.result.step_ms:.2f} times as fast as {first.name}" if best.result.step_ms else ""
    console.print(f"recommended (simulated): strategy {best.strategy}, {changes}", highlight=False, soft_wrap=True)
    console.print(
        f"  step {_seconds(best.result.step_ms)} s, {best.result.tokens_per_gpu_s:.0f} tokens/GPU/s, {gain}; "
        + ("fits in memory" if best.fits else f"does not fit: {'; '.join(map(str, best.result.out_of_memory))}"),
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"  {_how_to_run(job, best)}", highlight=False, markup=False, soft_wrap=True)


def _how_to_run(job: Job, best: Recommendation) -> str:
    loading, settings = job.scenario.loading, best.settings
    workers = settings.get("loading.workers_per_rank", str(loading.workers_per_rank))
    prefetch = settings.get("loading.prefetch", str(loading.prefetch))
    degree = int(settings.get("max_degree", str(job.scenario.max_degree)))
    if job.scenario.pipeline.stages:
        return (
            f"cut and recompute: trimtab stages --stages {job.scenario.pipeline.stages} ...; packs: packing=isf or best"
        )
    loader = f"loader.mode=shadow loader.workers={workers} loader.prefetch={prefetch}"
    if best.strategy not in ("all", "whole-sample"):
        return f"that is another system's way; ours are the rows all and whole-sample: {loader} balance.mode=on"
    shared = best.strategy == "all" and job.scenario.sync != "step"
    balance = f"balance.mode=on balance.sync={job.scenario.sync} balance.max_degree={degree if shared else 1}"
    return f"run: trimtab train {job.scenario.task} ... {loader} {balance}"


def _seconds(milliseconds: float) -> str:
    """Three digits, or all before the point."""
    seconds = milliseconds / 1e3
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"
