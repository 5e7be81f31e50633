"""The partition of an interleaved pipeline: exhaustive where there are few, else local search from several starts.

A rank's chunks share its memory and its time, so that stages cannot be chosen one after the other. The layers a rank
recomputes are still chosen exactly for the least time of all its chunks together, though not for which of them pays it,
so no plan is proven best. The bound is the mean rank's work without recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise

import numpy as np

from trimtab.planning.pipeline_schedule import step_ns
from trimtab.planning.recompute import Choice
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stage_search import Found

MAX_PARTITIONS = 3000
MAX_ROUNDS = 40
_AT_ONCE = 256

Bounds = tuple[int, ...]


def search(problem: StageProblem, seeds: Iterable[Bounds]) -> Found | None:
    """Find a partition with a short step; None where none that was looked at fits.

    Args:
        problem: what it is for.
        seeds: partitions to begin with.
    """
    timer = _Timer(problem)
    layers, cuts = len(problem.profile), problem.stages - 1
    if math.comb(layers - 1, cuts) <= MAX_PARTITIONS:
        timer.time([(0, *inner, layers) for inner in combinations(range(1, layers), cuts)])
    else:
        for seed in dict.fromkeys(seeds):
            _descend(timer, seed)
    if timer.best is None:
        return None
    return Found(bounds=timer.best[1], lower_bound_ns=min(timer.best[0], _bound(problem)))


def _bound(problem: StageProblem) -> int:
    profile = problem.profile
    work = int((profile.forward_ns + profile.backward_ns).sum())
    return max(-(-work * problem.micro_batches // problem.ranks), work)


def _descend(timer: _Timer, start: Bounds) -> None:
    """Move cuts while that helps."""
    here, reached = start, timer.time([start])
    for _ in range(MAX_ROUNDS):
        moved = list(_moves(here))
        least = timer.time(moved, better_than=reached)
        if least is None or (reached is not None and least >= reached):
            return
        here, reached = least[1], least


def _moves(bounds: Bounds) -> Iterator[Bounds]:
    """One cut by one or two layers, or two neighbouring cuts by one together."""
    for cut in range(1, len(bounds) - 1):
        for by in (-2, -1, 1, 2):
            yield from _if_legal(bounds, {cut: by})
        for by in (-1, 1):
            if cut + 1 < len(bounds) - 1:
                yield from _if_legal(bounds, {cut: by, cut + 1: by})


def _if_legal(bounds: Bounds, by: dict[int, int]) -> Iterator[Bounds]:
    moved = tuple(bound + by.get(at, 0) for at, bound in enumerate(bounds))
    if all(before < after for before, after in pairwise(moved)):
        yield moved


class _Timer:
    """Times partitions, each rank's recomputation chosen exactly and remembered."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.best: tuple[int, Bounds] | None = None
        self._choices: dict[Bounds, Choice | None] = {}

    def time(
        self, partitions: list[Bounds], better_than: tuple[int, Bounds] | None = None
    ) -> tuple[int, Bounds] | None:
        """The shortest step of these and its partition; those that cannot be better are not looked at closely."""
        if better_than is not None:
            without = self._steps(partitions, [[0] * self.problem.stages for _ in partitions])
            partitions = [each for each, least in zip(partitions, without, strict=True) if least < better_than[0]]
        fitting, extra = [], []
        for bounds in partitions:
            recompute = self._recompute_ns(bounds)
            if recompute is not None:
                fitting.append(bounds)
                extra.append(recompute)
        if not fitting:
            return None
        least = min(zip(self._steps(fitting, extra), fitting, strict=True))
        if self.best is None or least < self.best:
            self.best = least
        return least

    def _recompute_ns(self, bounds: Bounds) -> list[int] | None:
        """[K], what each stage recomputes."""
        times = [0] * self.problem.stages
        for rank in range(self.problem.ranks):
            choice = self._choice(bounds, rank)
            if choice is None:
                return None
            rows, _ = self.problem.rank_layers(bounds, rank)
            stage_of = np.searchsorted(bounds, rows, side="right") - 1
            lasting = np.where(choice.recompute, self.problem.profile.recompute_ns[rows], 0)
            for stage in self.problem.stages_of(rank):
                times[stage] = int(lasting[stage_of == stage].sum())
        return times

    def _choice(self, bounds: Bounds, rank: int) -> Choice | None:
        spans = tuple(bound for stage in self.problem.stages_of(rank) for bound in bounds[stage : stage + 2])
        key = (rank, *spans)
        if key not in self._choices:
            self._choices[key] = self.problem.best_choice(bounds, rank)
        return self._choices[key]

    def _steps(self, partitions: list[Bounds], recompute_ns: list[list[int]]) -> list[int]:
        profile, steps = self.problem.profile, []
        forward = np.concatenate([[0], np.cumsum(profile.forward_ns)])
        backward = np.concatenate([[0], np.cumsum(profile.backward_ns)])
        for first in range(0, len(partitions), _AT_ONCE):
            cuts = np.array(partitions[first : first + _AT_ONCE], dtype=np.int64)
            extra = np.array(recompute_ns[first : first + _AT_ONCE], dtype=np.int64)
            send = np.array([self.problem.send_ns(bounds) for bounds in cuts.tolist()], dtype=np.int64)
            times = step_ns(
                self.problem.schedule,
                self.problem.ranks,
                self.problem.micro_batches,
                np.diff(forward[cuts], axis=1),
                np.diff(backward[cuts], axis=1) + extra,
                send.reshape(len(cuts), -1),
            )
            steps += times.tolist()
        return steps
