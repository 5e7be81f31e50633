"""No balance: contiguous equal blocks of the given order, as a plain distributed sampler deals them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.problem import Assignment, PartitionProblem

HONOURS = frozenset({"micro_batches", "micro_batch_cap"})


def contiguous_ranks(samples: int, ranks: int) -> NDArray[np.int64]:
    """int64 [N]: the first ranks get one more where N is not a multiple of R."""
    base, extra = divmod(samples, ranks)
    counts = np.full(ranks, base, dtype=np.int64)
    counts[:extra] += 1
    return np.repeat(np.arange(ranks, dtype=np.int64), counts)


def next_fit(tokens: NDArray[np.int64], max_tokens: int | None) -> NDArray[np.int64]:
    """Micro-batch of each of a rank's samples in order: a new one starts where the cap would be passed."""
    chosen = np.zeros(len(tokens), dtype=np.int64)
    if max_tokens is None:
        return chosen
    index, held = 0, 0
    for row, size in enumerate(tokens.tolist()):
        if held and held + size > max_tokens:
            index, held = index + 1, 0
        held += size
        chosen[row] = index
    return chosen


def pack_in_order(problem: PartitionProblem, rank: NDArray[np.int64]) -> Assignment:
    """Micro-batches of samples that stay on ``rank`` in the given order, as many as the cap asks for."""
    micro_batch = np.zeros_like(rank)
    for index in range(problem.ranks if problem.max_tokens_per_micro_batch is not None else 0):
        rows = np.flatnonzero(rank == index)
        micro_batch[rows] = next_fit(problem.tokens[rows], problem.max_tokens_per_micro_batch)
    return Assignment(rank=rank, micro_batch=micro_batch)


def solve(problem: PartitionProblem) -> Assignment | None:
    """Deal blocks; None where they need more micro-batches than the problem has."""
    assignment = pack_in_order(problem, contiguous_ranks(len(problem), problem.ranks))
    needed = int(assignment.micro_batch.max(initial=0)) + 1
    return assignment if needed <= problem.micro_batches else None
