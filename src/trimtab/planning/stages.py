"""Plans a pipeline: cuts layers into stages and chooses which recompute, jointly, for the shortest step under a cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.planning import interleaved_search, stage_search
from trimtab.planning.interleaved_recompute import recomputing, refine
from trimtab.planning.min_max import least_largest, run_sums
from trimtab.planning.peers import published_search, uniform_layers, uniform_parameters
from trimtab.planning.recompute import can_recompute
from trimtab.planning.stage_memory import why_infeasible
from trimtab.planning.stage_problem import StageProblem, plan_of_bounds
from trimtab.schema.stages import StagePlan

PEERS: dict[str, Callable[[StageProblem], StagePlan]] = {
    uniform_layers.NAME: uniform_layers.solve,
    uniform_parameters.NAME: uniform_parameters.solve,
    published_search.NAME: published_search.solve,
}


def plan_stages(problem: StageProblem) -> StagePlan:
    """The partition and the layers that recompute with the shortest predicted step.

    Under "1f1b" it is proven best unless the search ran out of its counts, hence never slower than the best partition
    without recomputation followed by the best recomputation. Interleaved it is best only where few partitions and
    few choices are all tried. ``lower_bound_ns`` tells how far from best a plan can be. Under either it is never slower
    than any peer's that fits.

    Raises:
        InfeasibleError: no partition fits, even if every layer recomputes; tells the smallest change that works.
    """
    peers = [solve(problem) for solve in PEERS.values()]
    starts = _starts(problem, peers)
    plans = [plan for bounds in starts if (plan := plan_of_bounds(problem, bounds, "joint")) is not None]
    reached = min((plan.step_ns for plan in plans), default=_any_step_ns(problem))
    seeds = [plan.bounds for plan in plans]
    if problem.schedule == "1f1b":
        found = stage_search.search(problem, reached, seeds)
    else:
        found = interleaved_search.search(problem, seeds)
    plan = None if found is None else plan_of_bounds(problem, found.bounds, "joint")
    if found is None or plan is None:
        raise why_infeasible(problem, starts)
    plans = [plan, *plans, *(peer for peer in peers if peer.fits)]
    if problem.schedule == "interleaved":
        plans += _refined(problem, plans)
    best = min(plans, key=lambda each: each.step_ns)  # a thinned choice of layers can miss a start's
    return replace(best, method=plan.method, lower_bound_ns=found.lower_bound_ns)


def _refined(problem: StageProblem, plans: Sequence[StagePlan]) -> list[StagePlan]:
    """The shortest of these, and the best partition without recomputation, with layers chosen for the whole step."""
    shortest = min(plans, key=lambda each: each.step_ns)
    found = [refine(problem, shortest.bounds, recomputing(problem, shortest))]
    free = interleaved_search.search(_without_cap(problem), [plan.bounds for plan in plans])
    if free is not None and free.bounds != shortest.bounds:
        found.append(refine(problem, free.bounds))
    return [plan for plan in found if plan is not None]


def _without_cap(problem: StageProblem) -> StageProblem:
    """The same with memory for all layers of all micro-batches."""
    profile = problem.profile
    held = profile.activation_bytes + profile.workspace_bytes + profile.boundary_bytes
    return replace(problem, memory_bytes=int(profile.state_bytes.sum() + 2 * problem.micro_batches * held.sum()) + 1)


def plan_peers(problem: StageProblem, lower_bound_ns: int = 0) -> dict[str, StagePlan]:
    """The plan of each published method; it may not fit.

    Args:
        problem: what they are for.
        lower_bound_ns: of the problem, as the joint plan found it.
    """
    return {name: replace(solve(problem), lower_bound_ns=lower_bound_ns) for name, solve in PEERS.items()}


def _starts(problem: StageProblem, peers: Sequence[StagePlan]) -> list[tuple[int, ...]]:
    """Partitions to begin with: evened with and without recomputation, least memory, and those of the peers."""
    profile = problem.profile
    work = profile.forward_ns + profile.backward_ns
    repeated = np.where(can_recompute(profile), profile.recompute_ns, 0)
    weights: list[NDArray[np.int64]] = [work, work + repeated, profile.state_bytes + profile.recomputed_bytes]
    starts = [least_largest(run_sums(weight, problem.stages))[1] for weight in weights]
    starts += [peer.bounds for peer in peers]
    return list(dict.fromkeys(starts))


def _any_step_ns(problem: StageProblem) -> int:
    """No plan takes longer: all work of all micro-batches, one after the other."""
    profile = problem.profile
    once = profile.forward_ns + profile.backward_ns + profile.recompute_ns + 2 * profile.boundary_ns
    return int(once.sum()) * problem.micro_batches
