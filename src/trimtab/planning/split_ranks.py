"""Micro-batches for solvers that only choose ranks: what a host does after balancing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.best_fit import best_fit
from trimtab.planning.bins import Bins, longest_first
from trimtab.planning.lpt import lpt
from trimtab.planning.problem import Assignment, PartitionProblem


def split_ranks(problem: PartitionProblem, rank: NDArray[np.int64]) -> Assignment | None:
    """Split every rank's samples into M micro-batches, largest first; None where some rank's do not fit."""
    micro_batch = np.zeros_like(rank)
    for index in range(problem.ranks):
        rows = np.flatnonzero(rank == index)
        bin_of = _split_rank(problem, rows)
        if bin_of is None:
            return None
        micro_batch[rows] = bin_of
    return Assignment(rank=rank, micro_batch=micro_batch)


def pack_ranks(problem: PartitionProblem, rank: NDArray[np.int64]) -> Assignment:
    """As few micro-batches as each rank alone needs under the cap; ranks may differ in number."""
    micro_batch = np.zeros_like(rank)
    for index in range(problem.ranks):
        rows = np.flatnonzero(rank == index)
        micro_batch[rows] = _fewest(problem, rows)
    return Assignment(rank=rank, micro_batch=micro_batch)


def _fewest(problem: PartitionProblem, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    cap = problem.max_tokens_per_micro_batch
    if cap is None:
        return np.zeros(len(rows), dtype=np.int64)
    fewest = max(1, -(-int(problem.tokens[rows].sum()) // cap))
    for micro_batches in range(fewest, len(rows) + 1):
        bin_of = _split_rank(replace(problem, micro_batches=micro_batches), rows)
        if bin_of is not None:
            return bin_of
    return np.arange(len(rows), dtype=np.int64)


def _split_rank(problem: PartitionProblem, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    ordered = longest_first(problem.cost_ns[rows], problem.tokens[rows])
    bins = Bins(
        cost=problem.cost_ns[rows][ordered],
        tokens=problem.tokens[rows][ordered],
        count=problem.micro_batches,
        max_tokens=problem.max_tokens_per_micro_batch,
        equal_counts=problem.equal_counts,
    )
    bin_of = lpt(bins)
    if bin_of is None and bins.max_tokens is not None and not bins.equal_counts:
        bin_of = best_fit(bins.tokens, bins.count, bins.max_tokens)
    if bin_of is None:
        return None
    place = np.empty(bins.count, dtype=np.int64)
    place[np.argsort(-bins.times(bin_of), kind="stable")] = np.arange(bins.count)
    result = np.empty_like(bin_of)
    result[ordered] = place[bin_of]
    return result
