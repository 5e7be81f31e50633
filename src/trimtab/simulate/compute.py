"""Runs a step plan on the described cluster: ranks compute, meet where the plan's ``sync`` says, and use the links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_gather_seconds, all_reduce_seconds
from trimtab.cost.flops import language_params
from trimtab.cost.memory import parameters, vision_parameters
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.simulate.embeddings import embedding_seconds
from trimtab.simulate.job import Job
from trimtab.simulate.timeline import Timeline

_BF16 = 2
_NS, _MS = 1e-9, 1e-3
_FORWARD_SHARE = 1 / 3  # a backward launches about twice the kernels of a forward


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Seconds of collectives in one pass over a micro-batch.

    Attributes:
        vision, language: gathering the tower's weights, and scattering its gradients in training.
        gradients: reducing gradients once a step, where that is not done layer by layer.
    """

    vision: float
    language: float
    gradients: float


def link_times(job: Job, *, train: bool) -> LinkTimes:
    """What weights and gradients take.

    Fully sharded (sync "layer"): weights are gathered layer by layer in the forward, again in the backward, and bf16
    gradients scattered; where state is shared by fewer ranks than there are, the shares' gradients are all-reduced at
    the end. Otherwise gradients are all-reduced over data-parallel ranks at the end, exposed.
    """
    scenario, cluster = job.scenario, job.cluster
    language = language_params(job.architecture.language, active=False) * float(_BF16)
    vision = 0.0 if job.architecture.vision is None else vision_parameters(job.architecture.vision) * float(_BF16)
    weights = parameters(job.architecture) * float(_BF16)
    if scenario.sync == "layer":
        passes = 3 if train else 1
        replicas = scenario.ranks // job.shards
        gradients = (
            reduce_seconds(cluster, job.shards, replicas, weights / job.shards) if train and replicas > 1 else 0.0
        )
        return LinkTimes(
            vision=passes * all_gather_seconds(cluster, job.shards, vision),
            language=passes * all_gather_seconds(cluster, job.shards, language),
            gradients=gradients,
        )
    share = weights / scenario.tensor_parallel
    reduced = all_reduce_seconds(cluster, scenario.data_ranks, share) if train else 0.0
    if train and scenario.tensor_parallel > 1:
        reduced = reduce_seconds(cluster, scenario.tensor_parallel, scenario.data_ranks, share)
    return LinkTimes(vision=0.0, language=0.0, gradients=reduced)


def reduce_seconds(cluster: Cluster, stride: int, replicas: int, total_bytes: float) -> float:
    """All-reduce between ranks ``stride`` apart; beyond a node each goes through its own NIC."""
    if replicas < 2:
        return 0.0
    if stride * replicas <= cluster.ranks_per_node:
        return all_reduce_seconds(cluster, replicas, total_bytes)
    link = cluster.across
    return link.latency + 2 * total_bytes * (replicas - 1) / replicas / link.all_to_all


def run_plan(
    job: Job,
    plan: StepPlan,
    batch: BatchMetadata,
    start: float,
    *,
    train: bool,
    times: int = 1,
    timeline: Timeline | None = None,
) -> float:
    """Run a plan, and say when the last rank is done.

    With sync "layer" every rank takes part in gathering every layer, so a micro-batch's vision, and then its language
    part, takes as long as the slowest rank or the links, whichever is longer.

    Args:
        job: the cluster and model.
        plan: of the batch.
        batch: its samples.
        start: seconds on the simulation's clock.
        train: gradients follow.
        times: how often the forward runs (once for each model whose log-probabilities are wanted).
        timeline: receives spans, or None.
    """
    links = link_times(job, train=train)
    vision, language = (np.asarray(load * _NS, dtype=np.float64) for load in (plan.vision_ns, plan.language_ns))
    language = language + job.scenario.micro_batch_ms * _MS * (1 if train else _FORWARD_SHARE)
    exchanges = embedding_seconds(plan, batch, job.architecture, job.cluster)
    exchanges = [(2 if train else 1) * each for each in exchanges]
    clock = start
    for _ in range(times):
        if plan.sync == "layer":
            clock = _by_layer(vision, language, exchanges, links, clock, timeline)
        else:
            clock = _by_micro_batch(vision, language, exchanges, clock, plan.sync == "step", timeline)
    if timeline is not None:
        timeline.add("links", 0, "reduce gradients", clock, links.gradients)
    return clock + links.gradients


def _by_layer(
    vision: NDArray[np.float64],
    language: NDArray[np.float64],
    exchanges: list[float],
    links: LinkTimes,
    clock: float,
    timeline: Timeline | None,
) -> float:
    for on_vision, on_language, exchange in zip(vision, language, exchanges, strict=True):
        for name, busy, gather in (("vision", on_vision, links.vision), ("language", on_language, links.language)):
            slowest = float(busy.max(initial=0))
            gather = 0.0 if name == "vision" and slowest == 0 else gather
            if timeline is not None:
                timeline.add_lanes("ranks", name, clock, busy)
                timeline.add("links", 0, f"weights of {name}", clock, gather)
            clock += max(slowest, gather)
            if name == "vision":
                if timeline is not None:
                    timeline.add("links", 0, "embeddings", clock, exchange)
                clock += exchange
    return clock


def _by_micro_batch(
    vision: NDArray[np.float64],
    language: NDArray[np.float64],
    exchanges: list[float],
    clock: float,
    meet_once: bool,
    timeline: Timeline | None,
) -> float:
    """Ranks run on their own and meet at each micro-batch's end, or once; an exchange is a meeting too."""
    done = np.full(vision.shape[1], clock)
    for on_vision, on_language, exchange in zip(vision, language, exchanges, strict=True):
        if timeline is not None:
            timeline.add_lanes("ranks", "vision", done, on_vision)
        done = done + on_vision
        if exchange:
            done = np.full_like(done, done.max() + exchange)
        if timeline is not None:
            timeline.add_lanes("ranks", "language", done, on_language)
        done = done + on_language
        if not meet_once:
            done = np.full_like(done, done.max())
    return float(done.max(initial=clock))
