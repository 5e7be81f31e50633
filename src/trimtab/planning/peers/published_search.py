"""OmniBal's balanced model partition and adaptive recomputation (ICML 2025, arXiv 2407.20761), from its description.

A greedy anchor evens the forward times of stages; candidates move every cut by at most r layers; they are ranked by
the variance of forward times and by bytes sent; the best are run under full recomputation and the fastest is kept; then
each stage turns recomputation off for as many layers as its free memory holds. How many are run, how the two ranks
combine and how ties of the greedy rule break are not published: ``TRIED`` candidates, the sum of ranks, the nearer cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.recompute import Choice
from trimtab.planning.stage_problem import StageProblem, plan_recomputing, stage_plan
from trimtab.schema.stages import StagePlan

NAME = "published-search"
TRIED = 5
MAX_CANDIDATES = 20_000

Measure = Callable[[StagePlan], float]


def solve(problem: StageProblem, *, radius: int = 1, measure: Measure | None = None) -> StagePlan:
    """Search around the greedy anchor, then spend free memory. It may not fit.

    Args:
        problem: what it is for.
        radius: r, the paper's 1.
        measure: time of a candidate, as run on the machine; default: its predicted step.
    """
    candidates = _ranked(problem, np.array(list(_candidates(problem, radius)), dtype=np.int64))
    everything = np.ones(len(problem.profile), dtype=np.bool_)
    plans = [plan_recomputing(problem, bounds, everything, NAME) for bounds in candidates[:TRIED].tolist()]
    fitting = [plan for plan in plans if plan.fits]
    if not fitting:
        return min(plans, key=lambda plan: max(memory.peak for memory in plan.memory))
    best = min(fitting, key=measure or (lambda plan: plan.step_ns))
    choices = [_spend(problem, best.bounds, rank) for rank in range(problem.ranks)]
    return stage_plan(problem, best.bounds, choices, NAME)


def anchor(forward_ns: NDArray[np.int64], stages: int) -> tuple[int, ...]:
    """Bounds [K + 1]: each stage ends where its forward time is nearest to an even share of what is left."""
    layers = len(forward_ns)
    bounds = [0]
    for stage in range(stages - 1):
        start, left = bounds[-1], stages - stage
        summed = np.cumsum(forward_ns[start : layers - left + 1])
        share = float(forward_ns[start:].sum()) / left
        bounds.append(start + 1 + int(np.abs(summed - share).argmin()))
    return (*bounds, layers)


def _candidates(problem: StageProblem, radius: int) -> Iterator[tuple[int, ...]]:
    """All cuts moved by up to ``radius``; where that is too many, at most two cuts moved."""
    middle = anchor(problem.profile.forward_ns, problem.stages)
    cuts = len(middle) - 2
    steps = range(-radius, radius + 1)
    if len(steps) ** cuts <= MAX_CANDIDATES:
        moves: Iterator[Sequence[int]] = product(steps, repeat=cuts)
    else:
        moves = _few_moves(cuts, steps)
    for move in moves:
        bounds = (0, *(cut + by for cut, by in zip(middle[1:-1], move, strict=True)), middle[-1])
        if all(after > before for before, after in pairwise(bounds)):
            yield bounds


def _few_moves(cuts: int, steps: range) -> Iterator[list[int]]:
    yield [0] * cuts
    for one, other in combinations(range(cuts), 2):
        for by, by_other in product(steps, repeat=2):
            move = [0] * cuts
            move[one], move[other] = by, by_other
            yield move


def _ranked(problem: StageProblem, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Candidates by the sum of their ranks in variance and in bytes sent, the less variance first among equals."""
    summed = np.concatenate([[0], np.cumsum(problem.profile.forward_ns)])
    variance = np.diff(summed[candidates], axis=1).astype(np.float64).var(axis=1)
    sent = problem.profile.boundary_bytes[candidates[:, 1:-1] - 1].sum(axis=1)
    ranks = np.searchsorted(np.sort(variance), variance) + np.searchsorted(np.sort(sent), sent)
    return candidates[np.lexsort((variance, ranks))]


def _spend(problem: StageProblem, bounds: Sequence[int], rank: int) -> Choice:
    """Turn recomputation off layer by layer, the one that needs least memory first, while the rank fits."""
    recompute = np.ones(len(problem.profile), dtype=np.bool_)
    room = problem.memory_bytes - sum(problem.held_bytes(bounds, rank))
    choice = problem.given_choice(bounds, rank, recompute)
    rows, _ = problem.rank_layers(bounds, rank)
    extra = problem.profile.activation_bytes[rows] - problem.profile.recomputed_bytes[rows]
    for row in rows[np.argsort(extra, kind="stable")].tolist():
        recompute[row] = False
        fewer = problem.given_choice(bounds, rank, recompute)
        if fewer.activation_bytes + fewer.transient_bytes <= room:
            choice = fewer
        else:
            recompute[row] = True
    return choice
