"""Steps of a pipeline: random batches or packs, over data-parallel replicas of some stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.layer_profile import MicroBatch, layer_profile
from trimtab.errors import SettingsError
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.plain_batches import random_batches
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.peers import uniform_parameters
from trimtab.planning.settings import PlanSettings
from trimtab.planning.stage_problem import StageProblem, plan_recomputing
from trimtab.planning.stages import plan_stages
from trimtab.planning.step import plan_step
from trimtab.schema.plans import StepPlan
from trimtab.schema.stages import LayerProfile, StagePlan
from trimtab.simulate.compute import reduce_seconds
from trimtab.simulate.device_memory import Overflow, overflow
from trimtab.simulate.job import Job
from trimtab.simulate.loading import Loading
from trimtab.simulate.pack_caps import pack_problem
from trimtab.simulate.pipeline_schedule import run_1f1b
from trimtab.simulate.simulated_step import PHASES, SimulatedStep
from trimtab.simulate.strategies import SimulatedStrategy
from trimtab.simulate.timeline import Timeline
from trimtab.simulate.workload import DrawnStep

_BF16 = 2
_NS = 1e-9


def simulate_pipeline(job: Job, strategy: SimulatedStrategy, timeline: Timeline | None) -> Iterator[SimulatedStep]:
    """Steps of a pipeline strategy, one after the other and epoch after epoch.

    Args:
        job: with ``pipeline.stages``; its batch counts packs, or plain batches.
        strategy: how samples are joined, and the model is cut.
        timeline: receives spans, or None.

    Raises:
        SettingsError: the data do not fill a step.
        InfeasibleError: no cut of the model fits in memory.
    """
    loading, clock = Loading(job, strategy), 0.0
    plan: StagePlan | None = None
    for drawn in _drawn(job, strategy):
        began = time.perf_counter()
        step = _PackedStep(job, strategy, drawn)
        if plan is None:
            plan = _stage_plan(job, strategy, step.profile)
        planning = time.perf_counter() - began
        ready = loading.ready(drawn, step.batch, clock, timeline)
        data = max(0.0, ready - clock)
        update = step.seconds(plan, clock + data, timeline)
        clock += data + update
        yield SimulatedStep(
            phases={**dict.fromkeys(PHASES, 0.0), "data": data, "update": update},
            tokens=int(step.batch.tokens.sum()),
            attention_ratio=step.attention_ratio,
            overflows=_overflows(job, plan),
            planning_seconds=planning,
        )


def _drawn(job: Job, strategy: SimulatedStrategy) -> Iterator[DrawnStep]:
    """One step after the other: every epoch is packed afresh, and what fills no step of it is left out."""
    size = job.scenario.batch_size
    pack_of = np.arange(size, dtype=np.int64)
    for packs in _epochs(job, strategy):
        if size > len(packs):
            kind = f"batches of {job.scenario.pipeline.batch}" if strategy.packing == "random" else "packs"
            raise SettingsError(f"batch_size={size} is more than the {len(packs)} {kind} of the data; lower it")
        for first in range(0, len(packs) - size + 1, size):
            chosen = packs.take(np.arange(first, first + size))
            yield DrawnStep(rows=chosen.rows, pack_of=np.repeat(pack_of, chosen.counts))


def _epochs(job: Job, strategy: SimulatedStrategy) -> Iterator[Packs]:
    """Packs by ISF, or plain random batches, of one epoch after the other in random order."""
    scenario = job.scenario
    rng = np.random.default_rng([scenario.seed, 1])
    for epoch in count():
        if strategy.packing == "random":
            yield random_batches(len(job.workload.samples), scenario.pipeline.batch, rng)
        else:
            yield pack_epoch(pack_problem(job), PackSettings(method="isf"), seed=scenario.seed, epoch=epoch)


class _PackedStep:
    """One step's micro-batches on every replica."""

    def __init__(self, job: Job, strategy: SimulatedStrategy, drawn: DrawnStep) -> None:
        assert drawn.pack_of is not None
        self._job, self._padded = job, strategy.packing == "random"
        self.batch = job.workload.samples.take(drawn.rows)
        self.plan = self._placed(drawn.pack_of)
        micro_batches, replicas = self.plan.micro_batches, self.plan.ranks
        self._shape = (micro_batches, replicas)
        sizes = [
            self._micro_batch(self.plan.rows(replica, index))
            for index in range(micro_batches)
            for replica in range(replicas)
        ]
        self.profile = self._profile(sizes)

    @property
    def attention_ratio(self) -> float:
        """Squared tokens of the busiest replica over the mean."""
        held = np.bincount(self.plan.rank, np.square(self.batch.tokens), minlength=self.plan.ranks)
        return float(held.max() / held.mean()) if held.any() else 1.0

    def _placed(self, pack_of: NDArray[np.int64]) -> StepPlan:
        """Packs dealt to replicas in turn."""
        costs = self._job.costs(self.batch, self._job.passes)
        settings = PlanSettings(strategy="as-is", sync="step")
        return plan_step(self.batch, costs, self._job.scenario.data_ranks, settings, pack_of=pack_of)

    def _micro_batch(self, rows: NDArray[np.int64]) -> MicroBatch:
        sizes = MicroBatch.of_batch(self.batch.take(rows))
        if not self._padded:
            return sizes
        return replace(sizes, lengths=np.full(len(rows), sizes.lengths.max(initial=1), dtype=np.int64))

    def _profile(self, sizes: list[MicroBatch]) -> LayerProfile:
        """Planned for the largest of the step's micro-batches, with the times of all."""
        scenario, cluster = self._job.scenario, self._job.cluster
        largest = max(sizes, key=lambda each: (each.tokens, each.patches))
        link = cluster.node if scenario.pipeline.stages <= cluster.ranks_per_node else cluster.across
        return layer_profile(
            self._job.architecture,
            cluster.device,
            largest,
            link,
            optimizer_shards=scenario.data_ranks,
            spread=sizes,
        )

    def seconds(self, plan: StagePlan, start: float, timeline: Timeline | None) -> float:
        """Time of the step under a stage plan, gradients of the fullest stage reduced at the end."""
        spread = self.profile.spread
        assert spread is not None
        firsts = np.array(plan.bounds[:-1])
        again = np.zeros(len(self.profile), dtype=np.bool_)
        again[[row for rows in plan.recompute for row in rows]] = True
        forward = np.add.reduceat(spread.forward_ns, firsts, axis=1)
        backward = np.add.reduceat(spread.backward_ns + np.where(again, spread.forward_ns, 0), firsts, axis=1)
        stages = len(firsts)
        of_stage = [np.swapaxes(each.reshape(*self._shape, stages), 1, 2) * _NS for each in (forward, backward)]
        send = np.array(plan.send_ns, dtype=np.float64) * _NS
        done = float(run_1f1b(of_stage[0], of_stage[1], send, start, timeline).max())
        weights = np.add.reduceat(self.profile.parameters, firsts).max() * float(_BF16)
        return done - start + reduce_seconds(self._job.cluster, stages, self.plan.ranks, weights)


def _stage_plan(job: Job, strategy: SimulatedStrategy, profile: LayerProfile) -> StagePlan:
    """Cut the model: by parameters, by time with every layer recomputed, or by time and memory together.

    Raises:
        InfeasibleError: a planned partition fits under no recomputation.
    """
    scenario = job.scenario
    problem = StageProblem(
        profile=profile,
        ranks=scenario.pipeline.stages,
        micro_batches=scenario.batch_size // scenario.data_ranks,
        memory_bytes=int(job.memory_limit),
    )
    if strategy.partition == "joint":
        return plan_stages(problem)
    everywhere = np.ones(len(profile), dtype=np.bool_)
    if strategy.partition == "parameters":
        bounds = uniform_parameters.solve(problem).bounds
    else:
        always = replace(
            profile,
            backward_ns=profile.backward_ns + profile.recompute_ns,
            recompute_ns=np.zeros_like(profile.recompute_ns),
            activation_bytes=profile.recomputed_bytes,
        )
        bounds = plan_stages(replace(problem, profile=always)).bounds
    return plan_recomputing(problem, bounds, everywhere, strategy.name)


def _overflows(job: Job, plan: StagePlan) -> list[Overflow]:
    needed = np.array([each.peak for each in plan.memory], dtype=np.float64)
    found = overflow("device", "update", needed, job.memory_limit)
    return [] if found is None else [found]
