"""Bytes a plan moves when samples already lie on ranks, and how to move fewer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import Bins, longest_first
from trimtab.planning.bounds import bin_bound
from trimtab.planning.local_search import local_search
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.schema.metadata import BatchMetadata

# A patch of the Qwen encoders in bf16: 2 frames x 14 x 14 pixels x 3 colours x 2 bytes.
_PATCH_BYTES = 2352
# Token id, label and loss weight, eight bytes each at most.
_TOKEN_BYTES = 24
_MAX_ROUNDS = 200


def sample_bytes(batch: BatchMetadata) -> NDArray[np.int64]:
    """int64 [N], about what moving each sample costs: its patches and its token columns."""
    patches = np.zeros(len(batch), dtype=np.int64)
    np.add.at(patches, batch.sample_of_visual, batch.patches)
    return patches * _PATCH_BYTES + batch.tokens * _TOKEN_BYTES


def moved_bytes(current_rank: NDArray[np.int64], rank: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Bytes of the samples that change rank."""
    return int(sizes[current_rank != rank].sum())


def stay_put(problem: PartitionProblem, current_rank: NDArray[np.int64], tolerance: float) -> Assignment | None:
    """The fewest exchanges we find that bring the present ranks within ``tolerance`` of the bound.

    Returns:
        An assignment in one micro-batch, or None where the present ranks break a cap or the problem asks for
        equal counts.
    """
    if problem.max_tokens_per_micro_batch is not None or problem.equal_counts:
        return None
    ordered = longest_first(problem.cost_ns, problem.tokens)
    bins = Bins(
        cost=problem.cost_ns[ordered],
        tokens=problem.tokens[ordered],
        count=problem.ranks,
        max_tokens=problem.max_tokens_per_rank,
        start=problem.start_ns,
        slowness=None if problem.rank_speed is None else 1.0 / problem.rank_speed,
    )
    held = np.zeros(problem.ranks, dtype=np.int64)
    np.add.at(held, current_rank, problem.tokens)
    if bins.max_tokens is not None and held.max() > bins.max_tokens:
        return None
    bound = bin_bound(bins.cost, bins.count, start=problem.start_ns, speed=problem.rank_speed)
    rank = np.empty_like(current_rank)
    rank[ordered] = local_search(bins, current_rank[ordered], bound, tolerance, _MAX_ROUNDS)
    return Assignment(rank=rank, micro_batch=np.zeros_like(rank))


def relabel(
    problem: PartitionProblem, assignment: Assignment, current_rank: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Assignment:
    """Name the groups of an assignment after the ranks that hold most of them already.

    Groups are interchangeable between ranks alike: within each micro-batch where ranks meet in it, over the whole
    step where they do not. Largest overlaps are matched first.
    """
    if problem.start_ns is not None or problem.rank_speed is not None:
        return assignment
    rank = assignment.rank.copy()
    meetings = np.zeros_like(rank) if problem.sync == "step" or _rank_capped(problem) else assignment.micro_batch
    for meeting in np.unique(meetings).tolist():
        rows = np.flatnonzero(meetings == meeting)
        names = _match(assignment.rank[rows], current_rank[rows], sizes[rows], problem.ranks)
        rank[rows] = names[assignment.rank[rows]]
    return Assignment(rank=rank, micro_batch=assignment.micro_batch)


def _rank_capped(problem: PartitionProblem) -> bool:
    return problem.max_tokens_per_rank is not None


def _match(
    group: NDArray[np.int64], current_rank: NDArray[np.int64], sizes: NDArray[np.int64], ranks: int
) -> NDArray[np.int64]:
    """int64 [R], rank that each group is named after."""
    pairs, inverse = np.unique(group * ranks + current_rank, return_inverse=True)
    overlap = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(overlap, inverse, sizes)
    names = np.full(ranks, -1, dtype=np.int64)
    taken = np.zeros(ranks, dtype=np.bool_)
    for pair in pairs[np.argsort(-overlap, kind="stable")].tolist():
        index, rank = divmod(pair, ranks)
        if names[index] < 0 and not taken[rank]:
            names[index] = rank
            taken[rank] = True
    names[names < 0] = np.flatnonzero(~taken)
    return names
