"""Whole samples over ranks and the fewest micro-batches that fit, by any strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trimtab.errors import InfeasibleError
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.split_ranks import pack_ranks, split_ranks
from trimtab.planning.strategies import Strategy


def partition(problem: PartitionProblem, strategy: Strategy, *, equal_microbatches: bool = True) -> Assignment:
    """Solve with the smallest number of micro-batches for which the strategy finds room.

    Args:
        problem: its ``micro_batches`` is ignored.
        strategy: one of ``STRATEGIES``.
        equal_microbatches: all ranks run the same number; otherwise each fills as few as it needs and stops.

    Raises:
        InfeasibleError: no arrangement within the caps was found.
        SettingsError: the strategy does not honour what the problem asks for.
    """
    strategy.check(problem)
    if problem.max_tokens_per_micro_batch is None:
        return _found(strategy.solve(replace(problem, micro_batches=1)), problem, strategy)
    if not strategy.ranks_only and equal_microbatches:
        return _fewest(problem, strategy, lambda wanted: strategy.solve(replace(problem, micro_batches=wanted)))
    ranks_only = replace(problem, micro_batches=1, max_tokens_per_micro_batch=None)
    rank = _found(strategy.solve(ranks_only), problem, strategy).rank
    if not equal_microbatches:
        return pack_ranks(problem, rank)
    return _fewest(problem, strategy, lambda wanted: split_ranks(replace(problem, micro_batches=wanted), rank))


def _fewest(problem: PartitionProblem, strategy: Strategy, attempt: Callable[[int], Assignment | None]) -> Assignment:
    room = (problem.max_tokens_per_micro_batch or 1) * problem.ranks
    fewest = max(1, -(-int(problem.tokens.sum()) // room))
    for micro_batches in range(fewest, max(fewest, len(problem)) + 1):
        assignment = attempt(micro_batches)
        if assignment is not None:
            return assignment
    raise _infeasible(problem, strategy)


def _found(assignment: Assignment | None, problem: PartitionProblem, strategy: Strategy) -> Assignment:
    if assignment is None:
        raise _infeasible(problem, strategy)
    return assignment


def _infeasible(problem: PartitionProblem, strategy: Strategy) -> InfeasibleError:
    """Every sample meets the caps alone, but no arrangement found meets them together."""
    total = int(np.sum(problem.tokens))
    return InfeasibleError(
        f"strategy {strategy.name!r} found no arrangement of {len(problem)} samples ({total} tokens) on "
        f"{problem.ranks} ranks within max_tokens_per_rank={problem.max_tokens_per_rank}; the mean is "
        f"{-(-total // problem.ranks)} tokens a rank: raise the cap or take fewer samples a step"
    )
