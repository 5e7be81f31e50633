"""Which part of which visual each rank's tokens include: a cut through a sample may go through an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequenceGroup, SequenceSlice

Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def visual_pieces(
    plan: StepPlan,
    batch: BatchMetadata,
    micro_batch: int,
    groups: Sequence[SequenceGroup],
    placeholders: Mapping[int, NDArray[np.int64]],
) -> Pieces:
    """The pieces of visuals on all ranks, rank by rank, in the order their tokens have there.

    Args:
        plan: of the step.
        batch: its samples.
        micro_batch: of the step.
        groups: its sharded sequences.
        placeholders: int64 [e] by row, where a sharded sample's visual tokens stand; evenly spread where not given.

    Returns:
        int64 [S] each: visual, the merged tokens ``start:stop`` of it, and rank.

    Raises:
        InvalidPlanError: a sample has more or fewer placeholders than its visuals have tokens.
    """
    whole = np.flatnonzero((plan.micro_batch == micro_batch) & (plan.degree == 1))
    visuals = np.flatnonzero(np.isin(batch.sample_of_visual, whole))
    columns = [
        visuals,
        np.zeros_like(visuals),
        batch.visual_tokens[visuals],
        plan.rank[batch.sample_of_visual[visuals]],
    ]
    sharded = [
        (*piece, rank)
        for group in groups
        for rank in group.ranks
        for held in group.slices(rank)
        for piece in slice_pieces(batch, held, placeholders.get(held.row))
    ]
    first = np.array(sharded, dtype=np.int64).reshape(-1, 4).T  # a rank's groups lie before its whole samples
    joined = np.concatenate([first, np.stack(columns)], axis=1)
    visual, start, stop, rank = joined[:, np.argsort(joined[3], kind="stable")]
    return visual, start, stop, rank


def slice_pieces(
    batch: BatchMetadata, held: SequenceSlice, placeholders: NDArray[np.int64] | None
) -> list[tuple[int, int, int]]:
    """(visual, start, stop) of the visual tokens in a slice of a sample, in order.

    Raises:
        InvalidPlanError: the sample has more or fewer placeholders than its visuals have tokens.
    """
    begin, end = batch.visual_offsets[held.row : held.row + 2].tolist()
    bounds = np.concatenate([[0], np.cumsum(batch.visual_tokens[begin:end])])
    total = int(bounds[-1])
    if placeholders is None:
        placeholders = np.arange(total) * int(batch.tokens[held.row]) // max(1, total)
    if len(placeholders) != total:
        raise InvalidPlanError(
            f"sample {batch.sample_ids[held.row]}: {len(placeholders)} placeholders for {total} visual tokens"
        )
    low, high = np.searchsorted(placeholders, [held.start, held.stop]).tolist()
    starts, stops = np.clip(low, bounds[:-1], bounds[1:]), np.clip(high, bounds[:-1], bounds[1:])
    return [
        (begin + index, int(starts[index] - bounds[index]), int(stops[index] - bounds[index]))
        for index in np.flatnonzero(stops > starts).tolist()
    ]
