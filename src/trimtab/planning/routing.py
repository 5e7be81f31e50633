"""Routes a plan implies: vision embeddings to the samples that use them, and samples to the ranks that run them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.routes import RoutePlan


def route_vision(plan: StepPlan, batch: BatchMetadata, micro_batch: int) -> RoutePlan:
    """Route of one micro-batch's vision embeddings, in merged tokens.

    A rank's source tensor holds its units in ``plan.unit_rows(rank, micro_batch)`` order; its result holds the
    visuals of its samples, ``plan.rows(rank, micro_batch)``, in sample and visual order with all their frames. A
    visual shared by several samples is sent to each.

    Raises:
        InvalidPlanError: a visual is not encoded in this micro-batch, whole and once.
    """
    units = np.flatnonzero(plan.units.micro_batch == micro_batch)
    units = units[np.lexsort((units, plan.units.rank[units]))]
    frame_rows = batch.grid_thw[:, 1] * batch.grid_thw[:, 2] // batch.merge_size**2
    unit_rows = frame_rows[plan.units.visual[units]] * (plan.units.frame_stop - plan.units.frame_start)[units]
    unit_rank = plan.units.rank[units]
    source_rows, source_start = _stack(unit_rows, unit_rank, plan.ranks)

    visuals = np.flatnonzero(plan.micro_batch[batch.sample_of_visual] == micro_batch)
    visual_rank = plan.rank[batch.sample_of_visual[visuals]]
    order = np.lexsort((visuals, visual_rank))
    visuals, visual_rank = visuals[order], visual_rank[order]
    destination_rows, visual_start = _stack(batch.visual_tokens[visuals], visual_rank, plan.ranks)

    unit, visual = _pairs(batch, plan, units, visuals)
    offset = plan.units.frame_start[units[unit]] * frame_rows[visuals[visual]]
    return RoutePlan(
        ranks=plan.ranks,
        rows=unit_rows[unit],
        source_rank=unit_rank[unit],
        source_start=source_start[unit],
        destination_rank=visual_rank[visual],
        destination_start=visual_start[visual] + offset,
        source_rows=source_rows,
        destination_rows=destination_rows,
    )


def route_samples(
    current_rank: NDArray[np.int64], target_rank: NDArray[np.int64], rows: NDArray[np.int64], ranks: int
) -> RoutePlan:
    """Route of whole samples that lie on ranks already.

    Args:
        current_rank: int64 [N], rank each sample lies on, in row order there.
        target_rank: int64 [N], rank each sample belongs on, to lie there in row order.
        rows: int64 [N], length of each sample (tokens, patches, visuals, or 1).
        ranks: R.
    """
    source_rows, source_start = _stack_in_place(rows, current_rank, ranks)
    destination_rows, destination_start = _stack_in_place(rows, target_rank, ranks)
    return RoutePlan(
        ranks=ranks,
        rows=rows,
        source_rank=current_rank,
        source_start=source_start,
        destination_rank=target_rank,
        destination_start=destination_start,
        source_rows=source_rows,
        destination_rows=destination_rows,
    )


def _stack(rows: NDArray[np.int64], rank: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Length of each rank's tensor, and where each block (given rank by rank) starts in it."""
    lengths = np.zeros(ranks, dtype=np.int64)
    np.add.at(lengths, rank, rows)
    before = np.cumsum(lengths) - lengths
    return lengths, np.cumsum(rows) - rows - before[rank]


def _stack_in_place(
    rows: NDArray[np.int64], rank: NDArray[np.int64], ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``_stack`` for blocks in any order of ranks."""
    order = np.argsort(rank, kind="stable")
    lengths, start = _stack(rows[order], rank[order], ranks)
    placed = np.empty_like(start)
    placed[order] = start
    return lengths, placed


def _pairs(
    batch: BatchMetadata, plan: StepPlan, units: NDArray[np.int64], visuals: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every (unit, visual) of equal key, as positions in ``units`` and ``visuals``."""
    unit_keys = batch.visual_keys[plan.units.visual[units]]
    by_key = np.argsort(unit_keys, kind="stable")
    keys = batch.visual_keys[visuals]
    first = np.searchsorted(unit_keys[by_key], keys, side="left")
    count = np.searchsorted(unit_keys[by_key], keys, side="right") - first
    visual = np.repeat(np.arange(len(visuals)), count)
    within = np.arange(len(visual)) - np.repeat(np.cumsum(count) - count, count)
    unit = by_key[np.repeat(first, count) + within]
    _check_whole(batch, plan, units[unit], visuals, visual)
    return unit, visual


def _check_whole(
    batch: BatchMetadata,
    plan: StepPlan,
    unit: NDArray[np.int64],
    visuals: NDArray[np.int64],
    visual: NDArray[np.int64],
) -> None:
    frames = np.zeros(len(visuals), dtype=np.int64)
    np.add.at(frames, visual, (plan.units.frame_stop - plan.units.frame_start)[unit])
    expected = batch.grid_thw[visuals, 0]
    wrong = np.flatnonzero(frames != expected)
    if len(wrong):
        row = int(wrong[0])
        raise InvalidPlanError(
            f"visual {int(visuals[row])} of sample {batch.sample_ids[int(batch.sample_of_visual[visuals[row]])]}: "
            f"{int(frames[row])} of {int(expected[row])} frames are encoded in its micro-batch"
        )
