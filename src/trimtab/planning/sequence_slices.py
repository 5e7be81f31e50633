"""From a plan's degrees to what each rank holds and the order in which it attends.

The order is highest degree first, then by node, then as packed (FlexRL, ICLR 2026: "highest sharding first"). Nodes
nest, so all ranks of a node have issued equally many exchanges before any of its own: no rank waits for another in a
circle, even while the next group's exchange runs beside the present one's attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequenceGroup, SequencePacking, SequenceSlice

DEFAULT_PACKING = SequencePacking()

AttentionStep = tuple[Literal["scatter", "attend", "collect"], int]
"""What to do for the k-th group of a rank: start the exchange to heads; await it, attend, start the exchange back;
await that."""


def sequence_groups(
    plan: StepPlan, tokens: NDArray[np.int64], micro_batch: int, *, packing: SequencePacking = DEFAULT_PACKING
) -> list[SequenceGroup]:
    """The sharded sequences of one micro-batch, on all ranks, in the order they attend.

    Args:
        plan: of the step.
        tokens: int64 [N], length of each sample.
        micro_batch: of the step.
        packing: which sequences of a node travel together.
    """
    rows = np.flatnonzero((plan.micro_batch == micro_batch) & (plan.degree > 1))
    rows = rows[np.lexsort((rows, plan.rank[rows], -plan.degree[rows]))]
    groups = []
    nodes = zip(plan.degree[rows].tolist(), plan.rank[rows].tolist(), strict=True)
    placed = zip(nodes, rows.tolist(), strict=True)
    for (degree, first), members in groupby(placed, key=itemgetter(0)):
        for packed in _joined([row for _, row in members], tokens, packing):
            lengths = tuple(int(tokens[row]) for row in packed)
            groups.append(SequenceGroup(degree=degree, first_rank=first, rows=tuple(packed), lengths=lengths))
    return groups


def held_slices(
    plan: StepPlan, tokens: NDArray[np.int64], groups: Sequence[SequenceGroup], rank: int, micro_batch: int
) -> list[SequenceSlice]:
    """What ``rank`` holds, in the order of its pack: of its groups, then its whole samples in batch order.

    Args:
        plan: of the step.
        tokens: int64 [N].
        groups: of the micro-batch, see ``sequence_groups``.
        rank: any.
        micro_batch: of the step.
    """
    sharded = [held for group in groups if rank in group.ranks for held in group.slices(rank)]
    whole = np.flatnonzero((plan.rank == rank) & (plan.micro_batch == micro_batch) & (plan.degree == 1)).tolist()
    return [*sharded, *(SequenceSlice(row=row, start=0, stop=int(tokens[row])) for row in whole)]


def attention_schedule(groups: int) -> list[AttentionStep]:
    """The order of one layer's attention over a rank's sharded groups; each exchange runs beside an attention.

    Backward runs it in reverse. Every group's k-th place is the same on all its ranks, hence so is the order.
    """
    steps: list[AttentionStep] = [("scatter", 0)] if groups else []
    for index in range(groups):
        if index + 1 < groups:
            steps.append(("scatter", index + 1))
        steps.append(("attend", index))
        if index:
            steps.append(("collect", index - 1))
    return [*steps, ("collect", groups - 1)] if groups else steps


def check_nested(groups: Sequence[SequenceGroup], ranks: int) -> None:
    """Check that nodes nest and the order goes from high degrees to low.

    Raises:
        InvalidPlanError: names the two sequences or the sequence and rank at fault.
    """
    for group in groups:
        if group.degree < 1 or group.first_rank < 0 or group.first_rank + group.degree > ranks:
            raise InvalidPlanError(
                f"sample {group.rows[0]}: its node is ranks {_span(group)}, but the run has ranks 0 to {ranks - 1}"
            )
    nodes = sorted({(group.first_rank, -group.degree): group for group in groups}.items())
    around: list[SequenceGroup] = []
    for _, group in nodes:
        while around and around[-1].ranks.stop <= group.first_rank:
            around.pop()
        if around and group.ranks.stop > around[-1].ranks.stop:
            raise InvalidPlanError(
                f"samples {around[-1].rows[0]} and {group.rows[0]}: their nodes, ranks {_span(around[-1])} and "
                f"{_span(group)}, overlap but neither holds the other"
            )
        around.append(group)
    for before, after in pairwise(groups):
        if before.degree < after.degree:
            raise InvalidPlanError(
                f"sample {after.rows[0]} of degree {after.degree} comes after sample {before.rows[0]} of degree "
                f"{before.degree}; ranks agree on one order only if higher degrees come first"
            )


def _joined(rows: list[int], tokens: NDArray[np.int64], packing: SequencePacking) -> list[list[int]]:
    """Short sequences next to one another joined up to the limit, in order; long ones alone."""
    packs: list[list[int]] = []
    full = packing.tokens + 1  # nothing joins, not even a sequence of no token
    held = full
    for row in rows:
        length = int(tokens[row])
        if length >= packing.below:
            packs.append([row])
            held = full
        elif held + length <= packing.tokens:
            packs[-1].append(row)
            held += length
        else:
            packs.append([row])
            held = length
    return packs


def _span(group: SequenceGroup) -> str:
    return f"{group.first_rank} to {group.first_rank + group.degree - 1}"
