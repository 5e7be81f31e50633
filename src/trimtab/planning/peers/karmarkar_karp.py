"""Largest differencing (Karmarkar and Karp 1982) for any number of ranks.

verl offers it without its equal-count rule. Partial partitions, each a few sums in descending order, are merged two
at a time, those with the largest spread first, the largest sums of one with the smallest of the other.
"""

from __future__ import annotations

import heapq

import numpy as np

from trimtab.planning.bins import longest_first
from trimtab.planning.problem import Assignment, PartitionProblem

HONOURS: frozenset[str] = frozenset()

# (sum, rows) of each rank, largest sum first; ranks without samples may be left out at the end.
Sums = list[tuple[int, list[int]]]


def solve(problem: PartitionProblem) -> Assignment:
    """Partition by the samples' costs."""
    costs = problem.cost_ns.tolist()
    singles: list[Sums] = [[(costs[row], [row])] for row in longest_first(problem.cost_ns, problem.tokens).tolist()]
    return as_assignment(difference(singles, problem.ranks), len(problem))


def difference(parts: list[Sums], ranks: int) -> Sums:
    """Merge partial partitions into one."""
    heap = [(-_spread(part, ranks), order, part) for order, part in enumerate(parts)]
    heapq.heapify(heap)
    for order in range(len(parts), 2 * len(parts) - 1):
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = _merge(first, second, ranks)
        heapq.heappush(heap, (-_spread(merged, ranks), order, merged))
    return heap[0][2] if heap else []


def as_assignment(parts: Sums, samples: int) -> Assignment:
    """The rank of every sample, all in one micro-batch."""
    rank = np.zeros(samples, dtype=np.int64)
    for index, (_, rows) in enumerate(parts):
        rank[rows] = index
    return Assignment(rank=rank, micro_batch=np.zeros_like(rank))


def _spread(part: Sums, ranks: int) -> int:
    return part[0][0] - (part[-1][0] if len(part) == ranks else 0)


def _merge(first: Sums, second: Sums, ranks: int) -> Sums:
    """Pair the i-th largest of one with the i-th smallest of the other; absent ranks count as zeros."""
    overlap = len(first) + len(second) - ranks
    if overlap <= 0:
        merged = first + second
    else:
        alone = len(first) - overlap
        pairs = zip(first[alone:], reversed(second[len(second) - overlap :]), strict=True)
        merged = first[:alone] + second[: len(second) - overlap]
        merged += [(left + right, rows + more) for (left, rows), (right, more) in pairs]
    return sorted(merged, key=_largest_sum_first)


def _largest_sum_first(entry: tuple[int, list[int]]) -> int:
    return -entry[0]
