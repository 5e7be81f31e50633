"""The partition of a 1F1B pipeline with the shortest step, recomputation chosen jointly.

A step's time grows with each stage's forward and backward, so every stage takes the shortest backward that fits its
memory, and only cuts remain to be searched. Dynamic programming over (first layer, stage) gives a lower bound of what
any partition of the remaining layers takes; branch and bound then tries partitions in the order of that bound and times
them exactly, until none that is left can be shorter. Work is bounded by counts, never by a clock: where a count runs
out, the plan keeps its lower bound and the gap is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.pipeline_schedule import at_once, step_ns
from trimtab.planning.stage_costs import NEVER, StageCosts, stage_costs
from trimtab.planning.stage_problem import StageProblem

MAX_NODES = 50_000
MAX_TIMED = 20_000
MAX_WALKED = 2_000_000  # forwards and backwards walked through while partitions are timed, many at once
_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best partition found.

    Attributes:
        bounds: [P + 1].
        lower_bound_ns: no partition takes less.
    """

    bounds: tuple[int, ...]
    lower_bound_ns: int


def search(problem: StageProblem, longest_ns: int, seeds: Iterable[tuple[int, ...]]) -> Found | None:
    """Find the partition with the shortest step.

    Args:
        problem: what it is for.
        longest_ns: a step that some plan is known to reach; partitions that must take longer are not looked at.
        seeds: partitions to begin with; those that do not fit are passed over.

    Returns:
        None where no partition within ``longest_ns`` fits.
    """
    costs = stage_costs(problem, longest_ns // problem.micro_batches)
    bounds = _Bounds(problem, costs)
    incumbent = _Incumbent(problem, costs)
    incumbent.time([*seeds, *bounds.best()])
    exhausted = _branch(bounds, incumbent)
    if incumbent.bounds is None:
        return None
    proven = exhausted and costs.exact
    least = incumbent.step_ns if proven else _relaxed_bound(problem, bounds, costs, incumbent.step_ns)
    return Found(bounds=incumbent.bounds, lower_bound_ns=min(least, incumbent.step_ns))


def _relaxed_bound(problem: StageProblem, bounds: _Bounds, costs: StageCosts, reached_ns: int) -> int:
    """The bound of the first layer, without recomputation where some choice of it was left out."""
    if costs.exact:
        return min(int(bounds.rest_ns[0, 0]), reached_ns)
    work = np.concatenate([[0], np.cumsum(problem.profile.backward_ns)])
    without = np.where(costs.backward_ns < NEVER, (work[None, :] - work[:, None])[None], NEVER)
    relaxed = StageCosts(forward_ns=costs.forward_ns, backward_ns=without, exact=True)
    return min(int(_Bounds(problem, relaxed).rest_ns[0, 0]), reached_ns)


class _Bounds:
    """What stages s to P - 1 take at least if they begin with layer i.

    With f and b a stage's forward and backward, c the transfer after it, m micro-batches and D of them in flight:

    - from a stage's first forward to its last backward it computes m (f + b);
    - its first backward comes no sooner than one round trip r through the stages behind after its first forward, in
      which it runs D forwards; likewise its last forward and the D backwards after it;
    - the stage behind begins f + c after it, and ends c + b before it.

    Attributes:
        through_ns: int64 [P, L + 1], one micro-batch forward and backward through the rest.
        rest_ns: int64 [P, L + 1], all micro-batches.
    """

    def __init__(self, problem: StageProblem, costs: StageCosts) -> None:
        self.problem, self.costs = problem, costs
        layers = len(problem.profile)
        self.through_ns = np.full((problem.ranks + 1, layers + 1), NEVER, dtype=np.int64)
        self.rest_ns = self.through_ns.copy()
        self.through_ns[problem.ranks, layers] = self.rest_ns[problem.ranks, layers] = 0
        for stage in reversed(range(problem.ranks)):
            for start in range(layers) if stage else (0,):
                ends = self.ends(stage, start)
                if len(ends):
                    own, rest, through = self.split(stage, start, ends)
                    self.rest_ns[stage, start] = np.maximum(own, rest).min()
                    self.through_ns[stage, start] = through.min()

    def ends(self, stage: int, start: int) -> NDArray[np.int64]:
        """Where the stage may end so that it fits and the rest can."""
        fits = self.costs.backward_ns[stage, start] < NEVER
        return np.flatnonzero(fits & (self.rest_ns[stage + 1] < NEVER))

    def split(
        self, stage: int, start: int, ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each end: at least what this stage takes, what the rest takes, and one micro-batch through all."""
        count, depth = self.problem.micro_batches, self.problem.in_flight[stage]
        forward = self.costs.forward_ns[start, ends]
        backward = self.costs.backward_ns[stage, start, ends]
        passed = forward + backward + self.sends(stage, ends)
        through = passed + self.through_ns[stage + 1, ends]
        before_backward = np.maximum(through - backward - depth * forward, 0)
        after_forward = np.maximum(through - forward - depth * backward, 0)
        idle = before_backward + after_forward if count > depth else np.maximum(before_backward, after_forward)
        return count * (forward + backward) + idle, passed + self.rest_ns[stage + 1, ends], through

    def sends(self, stage: int, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """There and back."""
        if stage == self.problem.ranks - 1:
            return np.zeros(len(ends), dtype=np.int64)
        return 2 * self.problem.profile.boundary_ns[ends - 1]

    def best(self) -> list[tuple[int, ...]]:
        """The partition that attains the bound, if any fits."""
        if self.rest_ns[0, 0] >= NEVER:
            return []
        bounds = [0]
        for stage in range(self.problem.ranks):
            ends = self.ends(stage, bounds[-1])
            own, rest, _ = self.split(stage, bounds[-1], ends)
            bounds.append(int(ends[np.maximum(own, rest).argmin()]))
        return [tuple(bounds)]


class _Incumbent:
    """The best partition timed so far."""

    def __init__(self, problem: StageProblem, costs: StageCosts) -> None:
        self.problem, self.costs = problem, costs
        self.bounds: tuple[int, ...] | None = None
        self.step_ns = int(NEVER)
        self.timed = self.walked = 0

    def time(self, partitions: list[tuple[int, ...]]) -> None:
        """Time partitions that may be better."""
        cuts = np.array(partitions, dtype=np.int64).reshape(len(partitions), self.problem.ranks + 1)
        stages = np.arange(self.problem.ranks)
        backward = self.costs.backward_ns[stages, cuts[:, :-1], cuts[:, 1:]]
        fits = (backward < NEVER).all(axis=1)
        if not fits.any():
            return
        cuts, backward = cuts[fits], backward[fits]
        forward = self.costs.forward_ns[cuts[:, :-1], cuts[:, 1:]]
        send = self.problem.profile.boundary_ns[cuts[:, 1:-1] - 1]
        if self.problem.ranks == 1:
            send = np.zeros_like(send)
        times = step_ns("1f1b", self.problem.ranks, self.problem.micro_batches, forward, backward, send)
        self.timed += len(times)
        passes = self.problem.ranks * self.problem.micro_batches
        self.walked += 2 * passes * -(-len(times) // at_once(passes))
        best = min((int(time), tuple(cut.tolist())) for time, cut in zip(times, cuts, strict=True))
        if self.bounds is None or best < (self.step_ns, self.bounds):
            self.step_ns, self.bounds = best


def _branch(bounds: _Bounds, incumbent: _Incumbent) -> bool:
    """Time every partition whose bound is below the best; False where counts ran out before."""
    waiting: list[tuple[int, ...]] = []
    for nodes, partition in enumerate(_promising(bounds, incumbent), start=1):
        if partition is not None:
            waiting.append(partition)
        if len(waiting) == _AT_ONCE:
            incumbent.time(waiting)
            waiting = []
        if nodes >= MAX_NODES or incumbent.timed >= MAX_TIMED or incumbent.walked >= MAX_WALKED:
            incumbent.time(waiting)
            return False
    if waiting:
        incumbent.time(waiting)
    return True


def _promising(bounds: _Bounds, incumbent: _Incumbent) -> Iterator[tuple[int, ...] | None]:
    """Depth first, the lowest bound first; None for every partition that is not whole yet."""
    last = bounds.problem.ranks - 1
    stack: list[tuple[int, tuple[int, ...], int]] = [(int(bounds.rest_ns[0, 0]), (0,), 0)]
    while stack:
        bound, cuts, passed = stack.pop()
        if bound >= incumbent.step_ns:
            continue
        stage = len(cuts) - 1
        if stage > last:
            yield cuts
            continue
        yield None
        ends = bounds.ends(stage, cuts[-1])
        if not len(ends):
            continue
        own, rest, _ = bounds.split(stage, cuts[-1], ends)
        reached = np.maximum(bound, passed + np.maximum(own, rest))
        promising = np.flatnonzero(reached < incumbent.step_ns)
        before = rest - bounds.rest_ns[stage + 1, ends]
        stack += [
            (int(reached[at]), (*cuts, int(ends[at])), passed + int(before[at]))
            for at in promising[np.argsort(-reached[promising], kind="stable")].tolist()
        ]
