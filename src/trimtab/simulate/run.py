"""Simulates every strategy of a scenario and sums up its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import load_cluster
from trimtab.errors import InfeasibleError, SettingsError
from trimtab.schema.table import MetadataTable
from trimtab.simulate.device_memory import Overflow, worst
from trimtab.simulate.job import Job
from trimtab.simulate.pack_caps import check_packs_hold_every_sample
from trimtab.simulate.pipeline import simulate_pipeline
from trimtab.simulate.scenario import SHORT_SAMPLE, Scenario
from trimtab.simulate.simulated_step import PHASES, SimulatedStep
from trimtab.simulate.step import simulate_steps, warm_up_steps
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.timeline import Timeline
from trimtab.simulate.workload import drawn_workload, table_workload

_PIPELINE_WARM_UP = 1
_BY_TIME = "isf+stages"


@dataclass(frozen=True, kw_only=True)
class StrategyResult:
    """A strategy's mean step.

    Attributes:
        name: of the strategy.
        step_ms: mean time of a step, those that warm up left out.
        phases: mean milliseconds of each phase; they add up to the step.
        tokens: language-model tokens of all steps.
        tokens_per_gpu_s: those over their time and devices.
        token_seconds: a device's time for a token, step by step.
        attention_ratio: mean over steps, of the update's plan.
        out_of_memory: the largest overflow of each place and phase.
        planning_ms: mean time the planner took here, for all plans of a step.
        shared_by: most ranks that share a sample in an update.
    """

    name: str
    step_ms: float
    phases: dict[str, float]
    tokens: int
    tokens_per_gpu_s: float
    token_seconds: tuple[float, ...]
    attention_ratio: float
    out_of_memory: list[Overflow]
    planning_ms: float
    shared_by: int = 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; planning, which is measured, single steps and who shares are left out."""
        return {
            "name": self.name,
            "step_ms": self.step_ms,
            "phases": self.phases,
            "tokens_per_step": self.tokens / len(self.token_seconds),
            "tokens_per_gpu_s": self.tokens_per_gpu_s,
            "attention_ratio": self.attention_ratio,
            "out_of_memory": [each.to_json() for each in self.out_of_memory],
        }


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A scenario's outcome.

    Attributes:
        scenario: what was simulated.
        strategies: one result for each that could be.
        refused: why the others could not, by name.
        timelines: spans of each, where they were asked for.
    """

    scenario: Scenario
    strategies: list[StrategyResult]
    refused: dict[str, str] = field(default_factory=dict)
    timelines: list[tuple[str, Timeline]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that every strategy ran, those that warm up left out."""
        return min((len(row.token_seconds) for row in self.strategies), default=0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "simulated": True,
            "scenario": self.scenario.name,
            "settings": asdict(self.scenario),
            "steps": self.steps,
            "strategies": [each.to_json() for each in self.strategies],
            "left_out": self.refused,
        }


def job_of(scenario: Scenario, architecture: Architecture, table: MetadataTable | None = None) -> Job:
    """Look up the scenario's cluster and draw its samples.

    Args:
        scenario: the job.
        architecture: its model.
        table: the metadata table its ``data`` names, or None for named data sets.

    Raises:
        SettingsError: the cluster or the data are unknown, or too small.
        MetadataError: the table does not suit the model.
    """
    cluster = load_cluster(scenario.cluster)
    cluster.nodes_of(scenario.ranks)
    if table is not None:
        workload = table_workload(table, architecture, scenario.data)
    else:
        least = 2 * scenario.batch_size
        if scenario.pipeline.stages:
            least *= 4 * scenario.pipeline.batch
        if scenario.pack_length is not None:
            least *= max(1, scenario.pack_length // SHORT_SAMPLE)
        workload = drawn_workload(scenario.data, architecture, scenario.media, least=least, seed=scenario.seed)
    return Job(scenario=scenario, architecture=architecture, cluster=cluster, workload=workload, table=table)


def simulate(job: Job, *, draw: bool = False, progress: Callable[[str], None] | None = None) -> Simulation:
    """Simulate every strategy of a job.

    Args:
        job: the scenario and what it names.
        draw: keep the spans of every step.
        progress: told the strategy and step before each is simulated.

    Raises:
        SettingsError, InfeasibleError: no strategy could be simulated, and why the first could not; or a sample fits
            no pack of a pipeline.
    """
    check_packs_hold_every_sample(job)
    found: list[StrategyResult] = []
    refused: dict[str, str] = {}
    timelines: list[tuple[str, Timeline]] = []
    first: SettingsError | InfeasibleError | None = None
    for name in job.scenario.compared:
        timeline = Timeline() if draw else None
        strategy = strategy_named(name, job.scenario.task, job.scenario.sync)
        if name == _BY_TIME and job.scenario.pipeline.stages == 1:
            refused[name] = "pipeline.stages=1 leaves nothing to cut, so it is isf; take 2 stages or more"
            first = first or SettingsError(f"{name}: {refused[name]}")
            continue
        try:
            found.append(simulate_strategy(job, strategy, timeline=timeline, progress=progress))
        except (SettingsError, InfeasibleError) as error:
            first = first or error
            refused[name] = str(error)
            continue
        if timeline is not None:
            timelines.append((name, timeline))
    if not found and first is not None:
        raise first
    return Simulation(scenario=job.scenario, strategies=found, refused=refused, timelines=timelines)


def simulate_strategy(
    job: Job,
    strategy: SimulatedStrategy,
    *,
    timeline: Timeline | None = None,
    progress: Callable[[str], None] | None = None,
) -> StrategyResult:
    """Simulate the steps of one strategy.

    Raises:
        SettingsError, InfeasibleError: it cannot be, and why.
    """
    simulated = simulate_steps if strategy.packing is None else simulate_pipeline
    warm_up = _PIPELINE_WARM_UP if job.scenario.pipeline.stages else warm_up_steps(job)
    wanted = job.scenario.steps + warm_up
    steps = _told(strategy.name, simulated(job, strategy, timeline), wanted, progress)
    return summed_up(strategy.name, steps[warm_up:], job.scenario.ranks)


def _told(
    name: str, steps: Iterator[SimulatedStep], wanted: int, progress: Callable[[str], None] | None
) -> list[SimulatedStep]:
    """The first steps of an endless run, each told before it is simulated."""
    found: list[SimulatedStep] = []
    for number in range(1, wanted + 1):
        if progress is not None:
            progress(f"{name}, step {number} of {wanted}")
        found.append(next(steps))
    return found


def summed_up(name: str, steps: list[SimulatedStep], ranks: int) -> StrategyResult:
    """The mean of some steps."""
    phases = {phase: float(np.mean([step.phases[phase] for step in steps])) * 1e3 for phase in PHASES}
    seconds = sum(step.seconds for step in steps)
    return StrategyResult(
        name=name,
        step_ms=round(sum(phases.values()), 3),
        phases={phase: round(value, 3) for phase, value in phases.items()},
        tokens=sum(step.tokens for step in steps),
        tokens_per_gpu_s=round(sum(step.tokens for step in steps) / seconds / ranks, 2) if seconds else 0.0,
        token_seconds=tuple(step.seconds * ranks / max(1, step.tokens) for step in steps),
        attention_ratio=round(float(np.mean([step.attention_ratio for step in steps])), 4),
        out_of_memory=worst([each for step in steps for each in step.overflows]),
        planning_ms=round(float(np.mean([step.planning_seconds for step in steps])) * 1e3, 1),
        shared_by=max(step.shared_by for step in steps),
    )
