"""A complete candidate for a step: samples and vision units placed, loads and step time predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.loads import (
    at_speed,
    cost_at_degree,
    language_loads,
    sharded_loads,
    step_time,
    vision_loads,
)
from trimtab.planning.peers import loongforge_vision
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.strategies import VisionRule
from trimtab.planning.vision import Encodings, balanced_units, encodings, units_on
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import VisionUnits


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrangement:
    """Where everything runs and what that takes (M micro-batches, R ranks).

    Attributes:
        assignment: rank and micro-batch of each sample.
        micro_batches: M.
        units: the vision units.
        language_ns: int64 [M, R].
        vision_ns: int64 [M, R].
        step_ns: predicted step time, exchange of embeddings included.
        exchange_ns: time of that exchange, where it is known.
    """

    assignment: Assignment
    micro_batches: int
    units: VisionUnits
    language_ns: NDArray[np.int64]
    vision_ns: NDArray[np.int64]
    step_ns: int
    exchange_ns: int = 0


def arrange(
    batch: BatchMetadata, costs: Costs, problem: PartitionProblem, assignment: Assignment, vision: VisionRule
) -> Arrangement:
    """Place the vision units of an assignment and predict its loads."""
    micro_batches = int(assignment.micro_batch.max(initial=0)) + 1
    shape = (micro_batches, problem.ranks)
    if assignment.degree is None:
        language = language_loads(costs.language_ns, assignment.rank, assignment.micro_batch, shape)
    else:
        on_rank = cost_at_degree(costs, assignment.degree)
        language = sharded_loads(on_rank, assignment.rank, assignment.micro_batch, assignment.degree, shape)
    language = at_speed(language, problem.rank_speed)
    work = encodings(batch, costs.vision_frame_ns, assignment.rank, assignment.micro_batch)
    units = _units(batch, work, vision, _base(language, problem))
    vision_ns = at_speed(vision_loads(costs.vision_frame_ns, units, shape), problem.rank_speed)
    return Arrangement(
        assignment=assignment,
        micro_batches=micro_batches,
        units=units,
        language_ns=language,
        vision_ns=vision_ns,
        step_ns=step_time(language, vision_ns, problem.sync, problem.start_ns),
    )


def _units(batch: BatchMetadata, work: Encodings, vision: VisionRule, base_ns: NDArray[np.int64]) -> VisionUnits:
    if vision == "spread":
        return balanced_units(work, base_ns)
    if vision == "at-owner":
        return units_on(work, work.owner)
    rank = work.owner.copy()
    for index in np.unique(work.micro_batch).tolist():
        rows = np.flatnonzero(work.micro_batch == index)
        visual = work.visual[rows]
        rank[rows] = loongforge_vision.solve(
            batch.patches[visual], batch.is_video[visual], work.owner[rows], base_ns.shape[1]
        )
    return units_on(work, rank)


def _base(language: NDArray[np.int64], problem: PartitionProblem) -> NDArray[np.int64]:
    """Time [M, R] that vision shares a meeting point with."""
    if problem.sync == "layer":
        return np.zeros_like(language)
    if problem.sync == "micro_batch":
        return language
    total = language.sum(axis=0) + (0 if problem.start_ns is None else problem.start_ns)
    return np.broadcast_to(total, language.shape)
