"""Loading by one controller, by every rank, or wherever a core is free: when data is ready, and who holds it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.simulate.decode_pool import DecodePool
from trimtab.simulate.device_memory import Overflow, overflow
from trimtab.simulate.job import Job
from trimtab.simulate.strategies import SimulatedStrategy
from trimtab.simulate.timeline import Timeline
from trimtab.simulate.workload import DrawnStep

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Loading:
    """The loader of one strategy, with the state of its cores from step to step."""

    def __init__(self, job: Job, strategy: SimulatedStrategy) -> None:
        """All cores are free."""
        self._job, self.loader = job, strategy.loader
        settings, cluster = job.scenario.loading, job.cluster
        self._nodes, self._near = job.nodes, min(cluster.ranks_per_node, job.scenario.ranks)
        self._data_ranks = job.scenario.data_ranks
        a_rank = max(1, min(settings.workers_per_rank, cluster.host.cores // cluster.ranks_per_node))
        if self.loader == "controller":
            self._pools = [DecodePool(min(settings.controller_workers, cluster.host.cores))]
        elif self.loader == "ranks":
            workers = a_rank * job.scenario.tensor_parallel
            self._pools = [DecodePool(workers) for _ in range(self._data_ranks)]
        else:
            self._pools = [DecodePool(a_rank * job.scenario.ranks)]
        self._began: list[float] = []
        self._dealt: Ints = np.zeros(0, dtype=np.int64)

    def visual_bytes(self, batch: BatchMetadata) -> Floats:
        """float64 [V], bytes of each visual's pixel tensor."""
        values = float(self._job.workload.values_per_patch * self._job.scenario.loading.value_bytes)
        return np.asarray(batch.patches * values, dtype=np.float64)

    def ready(self, drawn: DrawnStep, batch: BatchMetadata, now: float, timeline: Timeline | None) -> float:
        """When the batch of the step that begins ``now`` is decoded; call once a step, in order.

        Args:
            drawn: its samples in the workload.
            batch: the same samples.
            now: seconds on the simulation's clock.
            timeline: receives spans, or None.
        """
        settings, workload = self._job.scenario.loading, self._job.workload
        self._began.append(now)
        ahead = len(self._began) - 1 - settings.prefetch
        may_start = self._began[ahead] if ahead >= 0 else 0.0
        visuals = workload.visuals_of(drawn.rows)
        seconds = (
            workload.decode_pixels[visuals] / self._job.cluster.host.decode_pixels
            + workload.kept_pixels[visuals] / settings.preprocess_pixels
        )
        if self.loader == "shadow":
            seconds = np.sort(seconds)[::-1]  # as its scheduler: in a step the longest first
        if self.loader != "ranks":
            done = self._pools[0].decode(may_start, seconds)
            if timeline is not None:
                timeline.add("decode workers", 0, f"batch {len(self._began) - 1}", may_start, done - may_start)
            return done
        self._dealt = drawn.dealt(self._data_ranks)
        owner = self._dealt[batch.sample_of_visual]
        ends = [pool.decode(may_start, seconds[owner == rank]) for rank, pool in enumerate(self._pools)]
        if timeline is not None:
            timeline.add_lanes("decode workers", f"batch {len(self._began) - 1}", may_start, np.array(ends) - may_start)
        return max(ends)

    def move_seconds(self, plan: StepPlan, batch: BatchMetadata) -> float:
        """Time until every rank has the pixels it encodes, from where they were decoded.

        From a controller every copy is serialised by one process. Otherwise ranks send and receive at once, and the one
        with most to move is the last; what lies on the same host is free.
        """
        if batch.num_visuals == 0:
            return 0.0
        if self.loader == "controller":
            return float(self.copies(plan, batch).sum()) / self._job.scenario.loading.ship_bandwidth
        needed = self._needed(plan, batch)
        bandwidth = self._job.cluster.across.all_to_all * self._job.scenario.tensor_parallel
        if self.loader == "shadow":
            return float(needed.max(initial=0)) * (self._nodes - 1) / self._nodes / bandwidth
        return self._moved(plan, batch) / (bandwidth if self._nodes > 1 else self._job.cluster.node.all_to_all)

    def copies(self, plan: StepPlan, batch: BatchMetadata) -> Floats:
        """float64 [R], bytes each rank is handed where whole samples are shipped, one copy of a visual for each rank.

        A sample that ranks share is handed to the first of them, which passes it on, as verl's Ulysses workers do.
        """
        pairs = batch.visual_keys * plan.ranks + plan.rank[batch.sample_of_visual]
        _, first = np.unique(pairs, return_index=True)
        handed = np.zeros(plan.ranks)
        np.add.at(handed, plan.rank[batch.sample_of_visual[first]], self.visual_bytes(batch)[first])
        return handed

    def _needed(self, plan: StepPlan, batch: BatchMetadata) -> Floats:
        """float64 [R], bytes of the frames each rank encodes."""
        units, needed = plan.units, np.zeros(plan.ranks)
        np.add.at(needed, units.rank, self._unit_bytes(plan, batch))
        return needed

    def _unit_bytes(self, plan: StepPlan, batch: BatchMetadata) -> Floats:
        units = plan.units
        a_frame = self.visual_bytes(batch) / batch.grid_thw[:, 0]
        return np.asarray(a_frame[units.visual] * (units.frame_stop - units.frame_start))

    def _moved(self, plan: StepPlan, batch: BatchMetadata) -> float:
        """Most bytes a rank sends or receives, samples lying as a sampler dealt them."""
        units, sizes = plan.units, self._unit_bytes(plan, batch)
        source = self._dealt[batch.sample_of_visual[units.visual]]
        leaves = source != units.rank
        sent, received = np.zeros(plan.ranks), np.zeros(plan.ranks)
        np.add.at(sent, source[leaves], sizes[leaves])
        np.add.at(received, units.rank[leaves], sizes[leaves])
        return float(max(sent.max(), received.max()))

    def host_overflow(self, prompts: BatchMetadata, plan: StepPlan, batch: BatchMetadata) -> Overflow | None:
        """Hosts whose memory the batches held at once and the tensors on their way to ranks exceed.

        Args:
            prompts: the batch as it is loaded.
            plan: of the phase that needs most copies.
            batch: its samples.
        """
        held = (self._job.scenario.loading.prefetch + 1) * self.visual_bytes(prompts)
        hosts = np.zeros(self._nodes)
        host_of = np.arange(plan.ranks) * self._job.scenario.tensor_parallel // self._job.cluster.ranks_per_node
        if self.loader == "controller":
            handed = self.copies(plan, batch)
            hosts[0] = held.sum() + handed.sum()
            np.add.at(hosts, host_of, handed)
        elif self.loader == "ranks":
            rank = self._dealt[prompts.sample_of_visual]
            np.add.at(hosts, host_of[rank], held)
        else:
            hosts += held.sum() / self._nodes
            np.add.at(hosts, host_of, self._needed(plan, batch))
        return overflow("host", "data", hosts, self._job.cluster.host.memory)
