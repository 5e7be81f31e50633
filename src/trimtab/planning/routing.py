"""Routes a plan implies: vision embeddings to the samples that use them, and samples to the ranks that run them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.planning.sequence_slices import DEFAULT_PACKING, sequence_groups
from trimtab.planning.visual_pieces import visual_pieces
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.routes import RoutePlan
from trimtab.schema.sequences import SequencePacking


def route_vision(
    plan: StepPlan,
    batch: BatchMetadata,
    micro_batch: int,
    *,
    placeholders: Mapping[int, NDArray[np.int64]] | None = None,
    packing: SequencePacking = DEFAULT_PACKING,
) -> RoutePlan:
    """Route of one micro-batch's vision embeddings, in merged tokens.

    A rank's source tensor holds its units in ``plan.unit_rows(rank, micro_batch)`` order; its result holds the visual
    tokens of what it holds of its samples (see ``held_slices``), in that order. A visual shared by several samples is
    sent to each; a visual that a cut goes through is sent in parts.

    Args:
        plan: of the step.
        batch: its samples.
        micro_batch: of the step.
        placeholders: int64 [e] by row, where the visual tokens of a sharded sample stand in it. Samples left out are
            taken to spread them evenly. ``local(rank)`` depends only on samples ``rank`` holds or encodes for.
        packing: see ``sequence_groups``.

    Raises:
        InvalidPlanError: a visual is not encoded in this micro-batch, whole and once.
    """
    units = np.flatnonzero(plan.units.micro_batch == micro_batch)
    units = units[np.lexsort((units, plan.units.rank[units]))]
    frame_rows = batch.grid_thw[:, 1] * batch.grid_thw[:, 2] // batch.merge_size**2
    unit_rows = frame_rows[plan.units.visual[units]] * (plan.units.frame_stop - plan.units.frame_start)[units]
    unit_rank = plan.units.rank[units]
    source_rows, unit_start = _stack(unit_rows, unit_rank, plan.ranks)

    groups = sequence_groups(plan, batch.tokens, micro_batch, packing=packing)
    visuals, starts, stops, piece_rank = visual_pieces(plan, batch, micro_batch, groups, placeholders or {})
    destination_rows, piece_start = _stack(stops - starts, piece_rank, plan.ranks)

    unit, piece = _pairs(batch, plan, units, visuals)
    _check_whole(batch, plan, units[unit], visuals[piece], micro_batch)
    offset = plan.units.frame_start[units[unit]] * frame_rows[visuals[piece]]
    first = np.maximum(offset, starts[piece])
    rows = np.minimum(offset + unit_rows[unit], stops[piece]) - first
    kept = rows > 0
    unit, piece, offset, first, rows = unit[kept], piece[kept], offset[kept], first[kept], rows[kept]
    return RoutePlan(
        ranks=plan.ranks,
        rows=rows,
        source_rank=unit_rank[unit],
        source_start=unit_start[unit] + first - offset,
        destination_rank=piece_rank[piece],
        destination_start=piece_start[piece] + first - starts[piece],
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
    return by_key[np.repeat(first, count) + within], visual


def _check_whole(
    batch: BatchMetadata, plan: StepPlan, unit: NDArray[np.int64], visual: NDArray[np.int64], micro_batch: int
) -> None:
    """Check that the units paired with each visual of the micro-batch hold as many frames as it has."""
    paired = np.unique(np.stack([unit, visual]), axis=1)  # a visual in several pieces meets its units in each
    frames = np.zeros(batch.num_visuals, dtype=np.int64)
    np.add.at(frames, paired[1], (plan.units.frame_stop - plan.units.frame_start)[paired[0]])
    needed = plan.micro_batch[batch.sample_of_visual] == micro_batch
    wrong = np.flatnonzero(needed & (frames != batch.grid_thw[:, 0]))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidPlanError(
            f"visual {row} of sample {batch.sample_ids[int(batch.sample_of_visual[row])]}: "
            f"{int(frames[row])} of {int(batch.grid_thw[row, 0])} frames are encoded in its micro-batch"
        )
