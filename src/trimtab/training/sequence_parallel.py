"""Sharded samples in a training run: the groups of ranks that share them, and what sharing costs there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import torch
import torch.distributed as dist
from rich.console import Console

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.cluster import Cluster, Host, Link
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.sharding import ExchangeCost, with_degrees
from trimtab.loader.step_planner import AddDegrees
from trimtab.planning.sequence_groups import usable_degrees
from trimtab.planning.sequence_slices import DEFAULT_PACKING
from trimtab.runtime.groups import NodeGroups, Ranks, node_groups
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

_NOMINAL_LINK = Link(latency=50e-6, all_to_all=1e9, all_gather=1e9, all_reduce=1e9)
NOMINAL_CLUSTER = Cluster(
    name="nominal",
    ranks_per_node=8,
    device=NOMINAL_DEVICE,
    device_memory=80e9,
    node=_NOMINAL_LINK,
    across=_NOMINAL_LINK,
    host=Host(memory=1e12, cores=8, decode_pixels=1e8),
)
"""Links to go with ``NOMINAL_DEVICE``, where nobody measured any."""

_SMALL, _LARGE = 1 << 10, 1 << 22  # bytes a rank exchanges when links are timed
_REPEATS = 5


def sequence_nodes(
    language: LanguageArchitecture, ranks: Ranks, *, max_degree: int, timeout_s: float
) -> NodeGroups | None:
    """The groups that may share a sample, made and warmed; None where samples stay whole.

    A collective of all ranks. Where fewer ranks than asked for can share one, the first rank says so.

    Args:
        language: whose heads say which degrees are legal.
        ranks: of the run.
        max_degree: largest degree wanted.
        timeout_s: longest wait for another rank.
    """
    if max_degree == 1:
        return None
    degrees = usable_degrees(ranks.size, language.legal_degrees(max_degree), max_degree)
    if degrees[-1] < max_degree and ranks.is_first:
        Console(stderr=True).print(
            f"balance.max_degree={max_degree}: {_reach(degrees[-1])}; this model's heads split into "
            f"{', '.join(str(degree) for degree in language.legal_degrees(language.heads))}, ranks: {ranks.size}",
            markup=False,
            soft_wrap=True,
        )
    return node_groups(degrees, ranks.data, ranks.device, timeout_s=timeout_s)


def _reach(degree: int) -> str:
    return "samples stay whole" if degree == 1 else f"at most {degree} ranks will share a sample"


def degree_costs(language: LanguageArchitecture, cluster: Cluster, *, ranks: int, max_degree: int) -> AddDegrees:
    """What adds to the costs of whole samples those of every degree up to ``max_degree``; nothing where that is 1."""
    exchange = ExchangeCost(pack_below=DEFAULT_PACKING.below, pack_tokens=DEFAULT_PACKING.tokens)
    legal = language.legal_degrees(language.heads)

    def add(batch: BatchMetadata, whole: Costs) -> Costs:
        if max_degree == 1:
            return replace(whole, legal_degrees=legal)  # messages name no degree that heads do not allow
        return with_degrees(whole, batch.tokens, language, cluster, ranks, max_degree=max_degree, exchange=exchange)

    return add


def links_of(nodes: NodeGroups | None, ranks: Ranks, costs: Literal["measured", "analytic"]) -> Cluster:
    """The links samples are shared over: measured where costs are, else nominal; a collective of all ranks."""
    return measure_links(nodes, ranks) if nodes and costs == "measured" else NOMINAL_CLUSTER


def measure_links(nodes: NodeGroups, ranks: Ranks) -> Cluster:
    """The nominal cluster with the all-to-all of these ranks, timed in the largest groups of the run.

    A collective of all ranks, with equal results: ranks left over from the largest groups time nothing and learn from
    the others. Latency is the time of a small exchange; bandwidth comes from what a large one takes longer.
    """
    widest = torch.tensor(max(nodes.by_degree, default=1))
    dist.all_reduce(widest, op=dist.ReduceOp.MAX, group=ranks.control)
    largest = int(widest)
    seconds = torch.zeros(3, dtype=torch.float64)
    if largest in nodes.by_degree:
        times = [_least_seconds(nodes.by_degree[largest], size, ranks.device) for size in (_SMALL, _LARGE)]
        seconds = torch.tensor([*times, 1.0], dtype=torch.float64)
    dist.all_reduce(seconds, group=ranks.control)
    small, large, measured = seconds.tolist()
    if not measured:
        return NOMINAL_CLUSTER
    sent = (_LARGE - _SMALL) * (largest - 1) / largest
    bandwidth = sent / max((large - small) / measured, 1e-9)
    link = replace(_NOMINAL_LINK, latency=small / measured, all_to_all=bandwidth)
    return replace(NOMINAL_CLUSTER, name="measured", node=link, across=link)


def _least_seconds(group: dist.ProcessGroup, size: int, device: torch.device) -> float:
    sent = torch.zeros(size, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    least = float("inf")
    for _ in range(_REPEATS):
        _wait(device)
        began = time.perf_counter()
        dist.all_to_all_single(received, sent, group=group)
        _wait(device)
        least = min(least, time.perf_counter() - began)
    return least


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
