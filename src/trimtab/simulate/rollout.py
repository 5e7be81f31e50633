"""The rollout of a step: prompts go to engines, every engine generates its replies, the slowest ends the phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.communication import all_gather_seconds
from trimtab.cost.flops import FORWARD
from trimtab.cost.memory import parameters
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.simulate.device_memory import Overflow, overflow
from trimtab.simulate.engines import Engine
from trimtab.simulate.job import Job
from trimtab.simulate.strategies import SimulatedStrategy
from trimtab.simulate.timeline import Timeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """What a rollout took.

    Attributes:
        plan: which engine takes which prompt.
        weights: seconds to hand the policy's weights to the engines, first.
        busy: float64 [engines], seconds of each engine.
        overflow: engines that cannot hold one prompt's replies, or None.
        planning_seconds: what the planner took, not part of ``seconds``.
    """

    plan: StepPlan
    weights: float
    busy: NDArray[np.float64]
    overflow: Overflow | None
    planning_seconds: float

    @property
    def seconds(self) -> float:
        """Until the slowest engine is done."""
        return self.weights + float(self.busy.max(initial=0))

    def draw(self, timeline: Timeline, start: float) -> None:
        """Add its spans, ``start`` seconds on the simulation's clock."""
        timeline.add("links", 0, "weights to engines", start, self.weights)
        timeline.add_lanes("engines", "rollout", start + self.weights, self.busy)


def run_rollout(
    job: Job,
    strategy: SimulatedStrategy,
    prompts: BatchMetadata,
    replies: NDArray[np.int64],
) -> Rollout:
    """Generate the replies of a step.

    The planner knows prompts and the mean reply, not the lengths that come.

    Args:
        job: the cluster and model.
        strategy: whether prompts go to engines by cost.
        prompts: P samples.
        replies: int64 [P, n], lengths.
    """
    setup = job.scenario.rollout
    engines = job.scenario.ranks // setup.tensor_parallel
    engine = Engine.of(job.architecture.language, parameters(job.architecture), job.cluster, setup)
    began = time.perf_counter()
    prefill = job.costs(prompts, FORWARD, tensor_parallel=setup.tensor_parallel)
    expected = prefill.language_ns + engine.reply_ns(prompts.tokens, setup.replies, setup.mean_tokens)
    plan = plan_step(
        prompts,
        replace(prefill, language_ns=expected),
        engines,
        PlanSettings(
            strategy="whole-sample" if strategy.balance_rollout else "as-is",
            sync="step",
            balance_vision=False,
            ranks_per_node=max(1, job.cluster.ranks_per_node // setup.tensor_parallel),
        ),
    )
    planned = time.perf_counter() - began
    busy = plan.vision_ns.sum(axis=0) * 1e-9
    np.add.at(busy, plan.rank, prefill.language_ns * 1e-9)
    needed = np.zeros(engines)
    for index in range(engines):
        rows = np.flatnonzero(plan.rank == index)
        if len(rows):
            busy[index] += engine.generation_seconds(prompts.tokens[rows], replies[rows])
            needed[index] = engine.largest_cache(prompts.tokens[rows], replies[rows])
    return Rollout(
        plan=plan,
        weights=all_gather_seconds(job.cluster, job.shards, 2.0 * parameters(job.architecture)),
        busy=busy,
        overflow=_overflow(engine, needed),
        planning_seconds=planned,
    )


def _overflow(engine: Engine, cache: NDArray[np.float64]) -> Overflow | None:
    """In bytes of one device: weights and the largest prompt's cache against what an engine may fill."""
    weights = engine.memory - engine.cache_room
    found = overflow("device", "rollout", (weights + cache) / engine.devices, engine.memory / engine.devices)
    return None if found is None else replace(found, index=found.index * engine.devices)
