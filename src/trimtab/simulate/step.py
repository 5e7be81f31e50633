"""One step of a job under one strategy, phase by phase, and several steps one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.flops import FORWARD, Passes
from trimtab.planning.metrics import plan_metrics
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.simulate.compute import run_plan
from trimtab.simulate.device_memory import Overflow, activation_bytes, overflow, with_longest
from trimtab.simulate.job import Job
from trimtab.simulate.loading import Loading
from trimtab.simulate.packed_plans import AS_PACKED, plan_as_packed
from trimtab.simulate.replies import reply_lengths, with_replies
from trimtab.simulate.rollout import run_rollout
from trimtab.simulate.simulated_step import PHASES, SimulatedStep
from trimtab.simulate.strategies import SimulatedStrategy
from trimtab.simulate.timeline import Timeline
from trimtab.simulate.workload import DrawnStep

_FIRST_WARM_UP = 1_000_000  # its replies are no other step's


def warm_up_steps(job: Job) -> int:
    """Steps that do not count: until batches decoded before the first are used up, decoding seems too cheap."""
    return job.scenario.loading.prefetch + 1


def simulate_steps(job: Job, strategy: SimulatedStrategy, timeline: Timeline | None = None) -> Iterator[SimulatedStep]:
    """Steps of a strategy, one after the other on one clock, without end; ``warm_up_steps`` first.

    Those draw from a stream of their own, so that the steps that count take the same samples whatever is prefetched.
    """
    loading, clock = Loading(job, strategy), 0.0
    scenario, draw = job.scenario, job.workload.steps
    before, counted = (draw(scenario.batch_size, [scenario.seed, kind], scenario.pack_length) for kind in (2, 1))
    warm_up = enumerate(islice(before, warm_up_steps(job)), start=_FIRST_WARM_UP)
    for index, drawn in chain(warm_up, enumerate(counted)):
        run = _Step(job, strategy, loading, clock, timeline)
        done = run.grpo(drawn, index) if scenario.task == "grpo" else run.sft(drawn)
        if timeline is not None:
            warms = index >= _FIRST_WARM_UP
            name = f"warm-up {index - _FIRST_WARM_UP}" if warms else f"step {index}"
            timeline.add("steps", 0, name, clock, done.seconds)
        clock += done.seconds
        yield done


class _Step:
    """The clock and the tallies of one step."""

    def __init__(
        self, job: Job, strategy: SimulatedStrategy, loading: Loading, start: float, timeline: Timeline | None
    ) -> None:
        self._job, self._strategy, self._loading, self._timeline = job, strategy, loading, timeline
        self._clock = start
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._overflows: list[Overflow | None] = []
        self._planning = 0.0

    def sft(self, drawn: DrawnStep) -> SimulatedStep:
        """Data, then the update. Batch and plan are known ahead, so pixels move while the step before computes."""
        batch = self._job.workload.samples.take(drawn.rows)
        plan = self._plan(batch, self._job.passes, drawn.pack_of)
        ready = self._loading.ready(drawn, batch, self._clock, self._timeline)
        moved = self._loading.move_seconds(plan, batch)
        shipped = moved if self._loading.loader == "controller" else 0.0
        self._spend("data", max(0.0, ready + moved - shipped - self._clock) + shipped)
        self._overflows.append(self._loading.host_overflow(batch, plan, batch))
        self._compute("update", plan, batch, train=True)
        return self._done(plan, batch)

    def grpo(self, drawn: DrawnStep, step: int) -> SimulatedStep:
        """Data, rollout, log-probabilities, update; each phase is planned when its lengths are known."""
        job, rollout = self._job, self._job.scenario.rollout
        prompts = job.workload.samples.take(drawn.rows)
        ready = self._loading.ready(drawn, prompts, self._clock, self._timeline)
        self._spend("data", max(0.0, ready - self._clock))
        lengths = reply_lengths(rollout, len(prompts), job.scenario.seed, step)
        played = run_rollout(job, self._strategy, prompts, lengths)
        self._planning += played.planning_seconds
        if self._loading.loader == "controller":
            self._spend("data", self._loading.move_seconds(played.plan, prompts))
        if self._timeline is not None:
            played.draw(self._timeline, self._clock)
            self._timeline.add("steps", 1, "rollout", self._clock, played.seconds)
        self._overflows.append(played.overflow)
        self._clock += played.seconds
        self._phases["rollout"] += played.seconds
        batch = with_replies(prompts, lengths)
        plan = self._plan(batch, FORWARD)
        self._spend("data", self._loading.move_seconds(plan, batch))
        self._compute("inference", plan, batch, train=False, times=2 if rollout.reference else 1)
        if rollout.reference and self._loading.loader == "controller":
            self._spend("data", self._loading.move_seconds(plan, batch))
        hidden = self._phases["inference"]
        plan = self._plan(batch, job.passes)
        moved = self._loading.move_seconds(plan, batch)
        self._spend("data", moved if self._loading.loader == "controller" else max(0.0, moved - hidden))
        self._overflows.append(self._loading.host_overflow(prompts, plan, batch))
        self._compute("update", plan, batch, train=True)
        return self._done(plan, batch)

    def _plan(self, batch: BatchMetadata, passes: Passes, pack_of: NDArray[np.int64] | None = None) -> StepPlan:
        job, strategy, scenario = self._job, self._strategy, self._job.scenario
        began = time.perf_counter()
        shared = strategy.plan == "adaptive" or strategy.plan.startswith("uniform-")
        costs = job.costs(batch, passes, tensor_parallel=scenario.tensor_parallel, shared=shared)
        settings = PlanSettings(
            strategy=strategy.plan,
            sync=scenario.sync,
            max_tokens_per_micro_batch=job.micro_batch_tokens(strategy, batch),
            balance_vision=strategy.balance_vision and scenario.balance_vision,
            max_degree=scenario.max_degree,
            ranks_per_node=max(1, job.cluster.ranks_per_node // scenario.tensor_parallel),
        )
        if pack_of is not None and strategy.plan in AS_PACKED:
            plan = plan_as_packed(batch, costs, scenario.data_ranks, settings, pack_of)
        else:
            plan = plan_step(batch, costs, scenario.data_ranks, settings)
        self._planning += time.perf_counter() - began
        return plan

    def _compute(self, phase: str, plan: StepPlan, batch: BatchMetadata, *, train: bool, times: int = 1) -> None:
        job, scenario = self._job, self._job.scenario
        needed = activation_bytes(plan, batch, job.architecture, recompute=scenario.recompute, train=train)
        needed = needed / scenario.tensor_parallel + job.kept_bytes
        self._overflows.append(with_longest(overflow("device", phase, needed, job.memory_limit), plan, batch))
        end = run_plan(job, plan, batch, self._clock, train=train, times=times, timeline=self._timeline)
        if self._timeline is not None:
            self._timeline.add("steps", 1, phase, self._clock, end - self._clock)
        self._phases[phase] += end - self._clock
        self._clock = end

    def _spend(self, phase: str, seconds: float) -> None:
        if self._timeline is not None:
            self._timeline.add("hosts", 0, phase, self._clock, seconds)
            self._timeline.add("steps", 1, phase, self._clock, seconds)
        self._phases[phase] += seconds
        self._clock += seconds

    def _done(self, plan: StepPlan, batch: BatchMetadata) -> SimulatedStep:
        return SimulatedStep(
            phases=self._phases,
            tokens=int(batch.tokens.sum()),
            attention_ratio=plan_metrics(plan, batch).attention_ratio,
            overflows=[each for each in self._overflows if each is not None],
            planning_seconds=self._planning,
            shared_by=int(plan.degree.max(initial=1)),
        )
