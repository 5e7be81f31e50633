"""Largest differencing with equal sample counts, which verl's trainer uses to balance a batch.

Every partial partition starts as one sample a rank, so that merges keep counts equal.
"""

from __future__ import annotations

from trimtab.planning.bins import longest_first
from trimtab.planning.peers.karmarkar_karp import Sums, as_assignment, difference
from trimtab.planning.problem import Assignment, PartitionProblem

HONOURS = frozenset({"equal_counts"})


def solve(problem: PartitionProblem) -> Assignment:
    """Partition by the samples' costs; counts differ by one where N is not a multiple of R (verl refuses that)."""
    costs = problem.cost_ns.tolist()
    rows = longest_first(problem.cost_ns, problem.tokens).tolist()
    blocks: list[Sums] = []
    for start in range(0, len(rows), problem.ranks):
        block: Sums = [(costs[row], [row]) for row in rows[start : start + problem.ranks]]
        block += [(0, [])] * (problem.ranks - len(block))
        blocks.append(block)
    return as_assignment(difference(blocks, problem.ranks), len(problem))
