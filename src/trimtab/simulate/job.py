"""A scenario with everything it names looked up: what the simulation of every strategy shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.analytic import analytic_costs
from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_reduce_seconds
from trimtab.cost.flops import TRAIN, TRAIN_RECOMPUTE, Passes
from trimtab.cost.memory import bytes_per_token, kept_bytes_sharded, parameters
from trimtab.cost.sharding import ExchangeCost, with_degrees
from trimtab.errors import InfeasibleError
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.table import MetadataTable
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.strategies import SimulatedStrategy
from trimtab.simulate.workload import Workload

_BF16 = 2
_NS = 1e9


def largest_adaptive_degree(scenario: Scenario, architecture: Architecture) -> int:
    """Most ranks that may share a sample in an adaptive plan: ``max_degree``, or the next lower legal one."""
    legal = architecture.language.legal_degrees(min(scenario.max_degree, scenario.data_ranks))
    return max(legal, default=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What all strategies share.

    Attributes:
        scenario: as the user gave it.
        architecture: the model.
        cluster: where it runs.
        workload: its samples.
        table: the metadata table its samples come from, or None where they are drawn.
        measured: costs of whole samples on one device that were measured, or None for those of the architecture.
    """

    scenario: Scenario
    architecture: Architecture
    cluster: Cluster
    workload: Workload
    table: MetadataTable | None = None
    measured: Callable[[BatchMetadata], Costs] | None = None

    @cached_property
    def nodes(self) -> int:
        """Hosts.

        Raises:
            SettingsError: the cluster has fewer devices.
        """
        return self.cluster.nodes_of(self.scenario.ranks)

    @property
    def shards(self) -> int:
        """Devices that share the model's state."""
        return self.scenario.shards or self.scenario.ranks

    @property
    def passes(self) -> Passes:
        """Of an update."""
        return TRAIN_RECOMPUTE if self.scenario.recompute else TRAIN

    @cached_property
    def memory_limit(self) -> float:
        """Bytes of a device that may be filled."""
        return self.cluster.device_memory * (1 - self.scenario.reserve)

    def micro_batch_tokens(self, strategy: SimulatedStrategy, batch: BatchMetadata) -> int:
        """Most tokens of a rank's micro-batch: as asked for, or as device memory holds.

        A plan that keeps samples whole must take the longest one whatever memory holds; what then overflows is
        predicted and shown. Where not even the model's state fits, any plan may take it: no cap would help, and times
        are told as if memory sufficed.

        Args:
            strategy: that plans.
            batch: what is planned.

        Raises:
            InfeasibleError: the cap asked for is below what the longest sample needs.
        """
        scenario, degree = self.scenario, self.largest_degree(strategy)
        longest = int(batch.tokens.max(initial=1))
        least = -(-longest // degree)
        if scenario.micro_batch_tokens is not None and scenario.micro_batch_tokens < least:
            name = batch.sample_ids[int(batch.tokens.argmax())]
            raise InfeasibleError(
                f"micro_batch_tokens={scenario.micro_batch_tokens} is below {least}, the share of sample {name!r} of "
                f"{longest} tokens at the largest degree, {degree}; raise it, as the trainer would ask, or max_degree"
            )
        if self.kept_bytes >= self.memory_limit:
            least = longest
        return max(scenario.micro_batch_tokens or scenario.pack_length or self.room_tokens, least)

    @cached_property
    def kept_bytes(self) -> float:
        """Bytes on every device beside activations."""
        return self.kept_bytes_over(self.shards, fully=self.scenario.sync == "layer")

    def kept_bytes_over(self, shards: int, *, fully: bool) -> float:
        """Bytes on every device beside activations, with the state sharded over so many.

        Fully (sync "layer"): its share of the state, and two layers gathered at a time. Otherwise bf16 weights and fp32
        gradients of its part of every layer, and its share of the optimizer's 12 bytes a parameter.
        """
        if fully:
            return kept_bytes_sharded(self.architecture, shards)
        return parameters(self.architecture) * (6 / self.scenario.tensor_parallel + 12 / shards)

    @property
    def room_tokens(self) -> int:
        """Tokens of a micro-batch that fit beside what is kept, every token taken as visual where there is vision.

        At least 1, as a plan needs a cap; fully sharded over all ranks, else ``cost.memory.largest_micro_batch``.
        """
        free = (self.memory_limit - self.kept_bytes) * self.scenario.tensor_parallel
        return max(1, int(free // bytes_per_token(self.architecture, recompute=self.scenario.recompute)))

    def largest_degree(self, strategy: SimulatedStrategy) -> int:
        """Most ranks that may share a sample under a strategy."""
        if strategy.plan.startswith("uniform-"):
            return int(strategy.plan.removeprefix("uniform-"))
        if strategy.plan != "adaptive":
            return 1
        return largest_adaptive_degree(self.scenario, self.architecture)

    def costs(self, batch: BatchMetadata, passes: Passes, *, tensor_parallel: int = 1, shared: bool = False) -> Costs:
        """What a batch costs on one data-parallel rank of ``tensor_parallel`` devices.

        Tensor parallelism divides all work, and adds two all-reduces of every token's row in each layer and pass
        (Megatron-LM, arXiv 1909.08053), which nothing hides.

        Args:
            batch: N samples.
            passes: forward only, or a training step's.
            tensor_parallel: devices of a rank.
            shared: costs at every sequence-parallel degree are wanted.
        """
        costs = (
            self.measured(batch)
            if self.measured is not None
            else analytic_costs(
                batch, self.architecture, self.cluster.device, language_passes=passes, vision_passes=passes
            )
        )
        if tensor_parallel > 1:
            costs = self._split(costs, batch.tokens, passes, tensor_parallel)
        if not shared:
            return replace(costs, legal_degrees=self.architecture.language.legal_degrees(64))
        scenario = self.scenario
        return with_degrees(
            costs,
            batch.tokens,
            self.architecture.language,
            self.cluster,
            scenario.data_ranks,
            max_degree=max(8, scenario.max_degree, max(self._uniform_degrees(), default=1)),
            passes=passes,
            exchange=ExchangeCost(
                overlap=scenario.overlap, pack_below=scenario.pack_below, pack_tokens=scenario.pack_tokens
            ),
        )

    def _uniform_degrees(self) -> list[int]:
        names = [name for name in self.scenario.compared if name.startswith("uniform-")]
        return [int(name.removeprefix("uniform-")) for name in names]

    def _split(self, costs: Costs, tokens: NDArray[np.int64], passes: Passes, devices: int) -> Costs:
        language = self.architecture.language
        a_token = all_reduce_seconds(self.cluster, devices, 1e6 * language.hidden * _BF16) / 1e6
        rows = 2 * language.layers * passes.exchanges * a_token * _NS
        return replace(
            costs,
            language_ns=np.rint(costs.language_ns / devices + tokens * rows).astype(np.int64),
            vision_frame_ns=-(-costs.vision_frame_ns // devices),
        )
