"""Tables of ``trimtab simulate`` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.report.whole_table import print_whole
from trimtab.schema.number_of import number_of
from trimtab.simulate.how_to_run import HowToRun
from trimtab.simulate.job import Job
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.simulated_step import PHASES, seconds_of
from trimtab.simulate.sweep import Recommendation, Sweep, SweepPoint

_BAR = 28
_OF_EXCHANGES = frozenset({"pack_below", "pack_tokens"})


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
            seconds_of(row.step_ms),
            f"{row.tokens_per_gpu_s / slowest:.2f}" if slowest else "-",
            *(seconds_of(row.phases[phase]) for phase in phases),
            f"{row.tokens_per_gpu_s:.0f}",
            f"{row.attention_ratio:.2f}",
            "no" if row.out_of_memory else "yes",
            f"{row.planning_ms:.0f}",
        )
    console.print(_headline(job, found), highlight=False, markup=False, soft_wrap=True)
    print_whole(console, table)
    if len({row.tokens for row in found.strategies}) > 1:
        console.print("steps hold different tokens; gain compares tokens/GPU/s", highlight=False)
    for row in found.strategies:
        for each in row.out_of_memory:
            console.print(f"{row.name} out of memory: {each}", highlight=False, markup=False, soft_wrap=True)
    for name, reason in found.refused.items():
        console.print(f"{name} left out: {reason}", highlight=False, markup=False, soft_wrap=True)


def _headline(job: Job, found: Simulation) -> str:
    scenario = job.scenario
    packs = scenario.pack_length is not None or scenario.pipeline.stages > 0
    samples = f"{scenario.batch_size} {'packs' if packs else 'samples'}"
    if scenario.task == "grpo":
        samples = f"{scenario.batch_size} prompts of {scenario.rollout.replies} replies"
    return (
        f"SIMULATED {scenario.name}: {scenario.task} of {job.architecture.name} on {scenario.ranks} {job.cluster.name}"
        f", {samples} a step, {job.workload.description}; means of {number_of(found.steps, 'step')}. "
        "Planning ran here."
    )


def print_sweep(
    base: StrategyResult,
    swept: Sweep,
    standings: Mapping[tuple[str, str], str],
    idle: Sequence[str],
) -> None:
    """A small table for each setting, with bars of the time for a token.

    Args:
        base: with nothing changed.
        swept: what became of the values of each setting.
        standings: whether a value is the one given or recommended, in the order of the rows.
        idle: settings none of whose values makes a difference; said in a sentence.
    """
    console = Console()
    slowest = min((_speed(point) for tried in swept.points.values() for point in tried if _speed(point)), default=1.0)
    for name in swept.points:
        if name in idle:
            continue
        title = Text(f"{base.name}: {name}", style="italic")
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, title_justify="left")
        table.add_column("value", justify="right", no_wrap=True)
        for heading in ("step s", "time a token", "tokens/GPU/s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("fits", ""):
            table.add_column(heading, no_wrap=True)
        table.add_column("", max_width=_BAR)
        tried = swept.of(name)
        for pair in (pair for pair in standings if pair[0] == name):
            if pair in swept.refused:
                table.add_row(Text(pair[1]), *"----", "", Text(f"cannot be: {swept.refused[pair]}"))
            else:
                table.add_row(Text(pair[1]), *_figures(base, tried[pair], slowest, standings[pair]))
        print_whole(console, table)
    if idle:
        tried_of = (f"{name} ({', '.join(point.settings[name] for point in swept.points[name])})" for name in idle)
        line = f"no effect on {base.name}: {'; '.join(tried_of)}{_why_idle(idle)}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _figures(base: StrategyResult, point: SweepPoint, slowest: float, standing: str) -> list[str]:
    speed = _speed(point)
    return [
        seconds_of(point.result.step_ms),
        f"{base.tokens_per_gpu_s / speed - 1:+.1%}" if speed else "-",
        f"{speed:.0f}",
        "no" if point.result.out_of_memory else "yes",
        standing,
        "█" * round(_BAR * slowest / speed) if speed else "",
    ]


def _speed(point: SweepPoint) -> float:
    return point.result.tokens_per_gpu_s


def _why_idle(idle: Sequence[str]) -> str:
    if not _OF_EXCHANGES & {*idle}:
        return ""
    return ". Packs of exchanges save latency of short samples that ranks share, and few or none are shared here"


def print_recommendation(
    found: Simulation, best: Recommendation, run: HowToRun, doubts: Sequence[str], fixed: Sequence[str]
) -> None:
    """What to run, what it would bring, how sure that is, and how the trainer is told so.

    Args:
        found: every strategy with the settings as given.
        best: the recommendation.
        run: its command.
        doubts: of other steps.
        fixed: settings swept that are no choice.
    """
    console, result = Console(), best.result
    steps = number_of(found.steps, "step")
    changes = " ".join(f"{name}={value}" for name, value in best.settings.items()) or "the settings as given"
    lines = [
        f"recommended (simulated): strategy {best.strategy}, {changes}",
        f"  step {seconds_of(result.step_ms)} s, {result.tokens_per_gpu_s:.0f} tokens/GPU/s{_gain(found, best)}; "
        f"fits in memory in the {steps} simulated (steps=N simulates more of the data)",
        *(f"  {doubt}" for doubt in doubts),
        f"  {run}",
        *([f"  {run.needs}"] if run.needs else []),
    ]
    if not best.fits:
        overflows = "; ".join(map(str, result.out_of_memory))
        lines = [
            f"nothing fits in memory (simulated); the nearest is strategy {best.strategy}, {changes}: {overflows}",
            f"  {best.remedy}",
        ]
    if fixed:
        lines.append(f"not recommended, as it is the job itself or assumed: {', '.join(fixed)}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _gain(found: Simulation, best: Recommendation) -> str:
    """Over the first strategy, unless that, unchanged, is what is recommended."""
    first = found.strategies[0]
    same = first.name == best.strategy
    if same and not best.settings:
        return ""
    times = best.result.tokens_per_gpu_s / first.tokens_per_gpu_s
    return f", {times:.2f} times the throughput of {first.name}{' as given' if same else ''}"
