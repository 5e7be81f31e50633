"""For every run of layers and every place in a 1F1B pipeline: the shortest backward that fits the memory cap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.recompute import Frontier, transient_levels
from trimtab.planning.stage_problem import StageProblem

NEVER = np.int64(2**61)


@dataclass(frozen=True, eq=False, slots=True)
class StageCosts:
    """Times of layers i to j as stage s, for one micro-batch.

    Attributes:
        forward_ns: int64 [L + 1, L + 1] by first layer and end.
        backward_ns: int64 [P, L + 1, L + 1] by stage, first layer and end, what must recompute included; ``NEVER``
            where the run does not fit there, or is too long to be of use.
        exact: no choice of layers to recompute was left out.
    """

    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    exact: bool


def stage_costs(problem: StageProblem, longest_ns: int) -> StageCosts:
    """Cost every run whose forward and backward take at most ``longest_ns`` without recomputing."""
    profile, layers = problem.profile, len(problem.profile)
    work = profile.forward_ns + profile.backward_ns
    summed = np.concatenate([[0], np.cumsum(profile.forward_ns)])
    backward = np.full((problem.ranks, layers + 1, layers + 1), NEVER, dtype=np.int64)
    exact = True
    for start in range(layers):
        stop = start + int(np.searchsorted(np.cumsum(work[start:]), longest_ns, side="right"))
        if stop > start:
            exact &= _from(problem, start, stop, backward[:, start])
    return StageCosts(forward_ns=summed[None, :] - summed[:, None], backward_ns=backward, exact=exact)


def _from(problem: StageProblem, start: int, stop: int, backward: NDArray[np.int64]) -> bool:
    """Fill ``backward`` [P, L + 1] for runs that begin at ``start`` and end at ``stop`` at most."""
    profile = problem.profile
    copies = np.array(problem.in_flight, dtype=np.int64)
    levels, exact = transient_levels(profile, np.arange(start, stop))
    rows = np.arange(start, stop)
    extra = profile.activation_bytes[rows] - profile.recomputed_bytes[rows]
    held = profile.workspace_bytes[rows] + extra
    least = np.cumsum(profile.recomputed_bytes[rows])
    state = np.cumsum(profile.state_bytes[rows])
    work = np.cumsum(profile.backward_ns[rows])
    repeat = np.cumsum(np.where(extra > 0, profile.recompute_ns[rows], 0))
    outputs = np.where(rows + 1 < len(profile), profile.boundary_bytes[rows], 0)
    workspace = np.maximum.accumulate(profile.workspace_bytes[rows])
    for level in levels.tolist():
        frontier = Frontier.empty()
        must_keep = (held > level) | (extra == 0)
        transient = np.maximum(workspace, np.maximum.accumulate(np.where(must_keep, 0, held)))
        room = problem.memory_bytes - state - transient
        capacity = room[:, None] // copies - least[:, None] - outputs[:, None]  # [N, P], of one micro-batch
        for layer in range(len(rows)):
            limit = int(capacity[layer:].max(initial=-1))
            gain = int(profile.recompute_ns[rows[layer]]) if extra[layer] else 0
            frontier = frontier.add(int(extra[layer]), gain, must_keep=bool(must_keep[layer]), limit=limit)
            if not len(frontier.extra_bytes):
                break
            saved = frontier.most_saved(capacity[layer])
            needed = np.where(saved < 0, NEVER, work[layer] + repeat[layer] - saved)
            column = backward[:, start + layer + 1]
            np.minimum(column, needed, out=column)
        exact &= frontier.exact
    return exact
