"""Sharding strategies: one degree for all samples, or a degree for each.

The adaptive one searches degrees (``degree_search``) and takes the best of what it finds, no sharding and every uniform
degree; see docs/sharding.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.planning import whole_sample
from trimtab.planning.bins import longest_first
from trimtab.planning.bounds import sharded_bound
from trimtab.planning.degree_search import DegreeSearch
from trimtab.planning.feasibility import feasible_degrees
from trimtab.planning.node_placement import NodePlacer, Placement
from trimtab.planning.problem import Assignment, PartitionProblem, Sharding

HONOURS = frozenset({"micro_batches", "micro_batch_cap", "rank_cap"})

_TOLERANCE = 0.005
_UNIFORM_ROUNDS = 100


def solve_adaptive(problem: PartitionProblem) -> Assignment | None:
    """A degree and a node for every sample; None where no legal assignment was found."""
    order, problem, sharding = _sorted(problem)
    placer, bound = _placer(problem, sharding)
    search = DegreeSearch(placer, feasible_degrees(problem, sharding.family.degrees), bound, _TOLERANCE)
    whole = _whole(problem, sharding)
    if whole is not None:
        search.offer(whole)
    for index in range(1, len(sharding.family.degrees)):
        if _uniform_fits(problem, sharding, index):
            search.offer_uniform(index, _UNIFORM_ROUNDS)
    found = search.run()
    return None if found is None else _assignment(found, sharding, order)


def solve_uniform(problem: PartitionProblem) -> Assignment | None:
    """Every sample at the highest degree of the family; None where the caps leave no room."""
    order, problem, sharding = _sorted(problem)
    placer, _ = _placer(problem, sharding)
    index = len(sharding.family.degrees) - 1
    found = placer.place(np.full(len(problem), index, dtype=np.int64), _UNIFORM_ROUNDS)
    return None if found is None else _assignment(found, sharding, order)


def _uniform_fits(problem: PartitionProblem, sharding: Sharding, index: int) -> bool:
    """Whether every rank is in a node of that degree and every sample fits at it."""
    degree = sharding.family.degrees[index]
    return problem.ranks % degree == 0 and bool(feasible_degrees(problem, sharding.family.degrees)[:, index].all())


def _sorted(problem: PartitionProblem) -> tuple[NDArray[np.int64], PartitionProblem, Sharding]:
    """Samples longest first, so that the order they came in is moot."""
    assert problem.sharding is not None  # plan_step gives it to these strategies
    order = longest_first(problem.cost_ns, problem.tokens)
    sharding = problem.sharding.take(order)
    taken = replace(problem, cost_ns=problem.cost_ns[order], tokens=problem.tokens[order], sharding=sharding)
    return order, taken, sharding


def _placer(problem: PartitionProblem, sharding: Sharding) -> tuple[NodePlacer, int]:
    bound = sharded_bound(
        sharding.cost_ns, feasible_degrees(problem, sharding.family.degrees), sharding.family.degrees, problem.ranks
    )
    in_one = max(-(-bound // problem.micro_batches), int(sharding.cost_ns.min(axis=1).max(initial=0)))
    return NodePlacer(problem, sharding, int(in_one * (1 + _TOLERANCE))), bound


def _whole(problem: PartitionProblem, sharding: Sharding) -> Placement | None:
    """The plan of whole samples."""
    if not feasible_degrees(problem, sharding.family.degrees)[:, 0].all():
        return None
    found = whole_sample.solve(replace(problem, cost_ns=sharding.cost_ns[:, 0], sharding=None))
    if found is None:
        return None
    load = np.zeros((problem.micro_batches, problem.ranks), dtype=np.int64)
    held = np.zeros_like(load)
    np.add.at(load, (found.micro_batch, found.rank), sharding.cost_ns[:, 0])
    np.add.at(held, (found.micro_batch, found.rank), problem.tokens)
    return Placement(
        column=np.zeros(len(problem), dtype=np.int64),
        rank=found.rank,
        micro_batch=found.micro_batch,
        load=load,
        held=held,
        slowest_ns=int(load.max(axis=1).sum()),
        sent_bytes=0,
    )


def _assignment(found: Placement, sharding: Sharding, order: NDArray[np.int64]) -> Assignment:
    """The placement in the order the samples came in."""
    rank, micro_batch, degree = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    rank[order], micro_batch[order] = found.rank, found.micro_batch
    degree[order] = np.array(sharding.family.degrees, dtype=np.int64)[found.column]
    return Assignment(rank=rank, micro_batch=micro_batch, degree=degree)
