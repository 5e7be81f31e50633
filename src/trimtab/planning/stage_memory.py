"""Why no partition fits a memory cap, and the smallest change that would make one fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError, TrimtabError
from trimtab.planning.min_max import least_largest
from trimtab.planning.pipeline_schedule import in_flight
from trimtab.planning.stage_problem import StageProblem, plan_recomputing

_GB = 1e9
_MOST_STAGES_TRIED = 64


def least_memory(problem: StageProblem, ranks: int) -> NDArray[np.float64]:
    """float64 [P, L + 1, L + 1], what layers i to j take as stage s of a 1F1B pipeline if all of them recompute."""
    profile = problem.profile
    layers = len(profile)
    copies = np.array(in_flight("1f1b", ranks, 1, problem.micro_batches), dtype=np.float64)
    state = np.concatenate([[0], np.cumsum(profile.state_bytes)]).astype(np.float64)
    kept = np.concatenate([[0], np.cumsum(profile.recomputed_bytes)]).astype(np.float64)
    outputs = np.concatenate([[0], profile.boundary_bytes[:-1], [0]]).astype(np.float64)
    held = (profile.workspace_bytes + profile.activation_bytes - profile.recomputed_bytes).astype(np.float64)
    transient = np.full((layers + 1, layers + 1), np.inf)
    for start in range(layers):
        transient[start, start + 1 :] = np.maximum.accumulate(held[start:])
    once = state[None, :] - state[:, None] + transient
    each = kept[None, :] - kept[:, None] + outputs[None, :]
    return np.asarray(once[None] + copies[:, None, None] * each[None])


def why_infeasible(problem: StageProblem, starts: Iterable[Sequence[int]]) -> TrimtabError:
    """The error that tells what does not fit, and what would.

    Args:
        problem: that no partition fits.
        starts: partitions to look at where the least memory is not found exactly.
    """
    profile, cap = problem.profile, problem.memory_bytes / _GB
    alone = _alone(problem)
    layer = int(alone.argmax())
    if alone[layer] > problem.memory_bytes:
        found = (
            f"layer {profile.names[layer]} fits no rank: alone, and recomputed, it takes {alone[layer] / _GB:.3g} GB, "
            f"{profile.state_bytes[layer] / _GB:.3g} GB of them state, and the cap is {cap:g} GB"
        )
    else:
        found = f"no partition into {problem.stages} stages fits {cap:g} GB, even if every layer recomputes"
    return InfeasibleError(f"{found}; {_remedy(problem, starts)}")


def _alone(problem: StageProblem) -> NDArray[np.int64]:
    """int64 [L], what each layer takes where a rank holds one micro-batch of it and nothing else."""
    profile = problem.profile
    return np.asarray(profile.state_bytes + profile.activation_bytes + profile.workspace_bytes)


def _remedy(problem: StageProblem, starts: Iterable[Sequence[int]]) -> str:
    if problem.schedule != "1f1b":
        everything = np.ones(len(problem.profile), dtype=np.bool_)
        plans = [plan_recomputing(problem, bounds, everything, "least memory") for bounds in starts]
        least = min(max(memory.peak for memory in plan.memory) for plan in plans)
        return f"a cap of {_rounded_up(least)} GB fits, and schedule '1f1b' keeps fewer micro-batches"
    needed, _ = least_largest(least_memory(problem, problem.ranks))
    remedy = f"the smallest cap that fits is {_rounded_up(needed)} GB"
    if int(_alone(problem).max()) > problem.memory_bytes:
        return remedy  # more stages would not help that layer
    most = min(len(problem.profile), _MOST_STAGES_TRIED)
    for ranks in range(problem.ranks + 1, most + 1):
        if least_largest(least_memory(problem, ranks))[0] <= problem.memory_bytes:
            return f"{remedy}, or use {ranks} stages"
    return remedy


def _rounded_up(size: float) -> str:
    """Gigabytes, to a hundredth or three digits, whichever is finer."""
    step = min(_GB / 100, 10.0 ** (np.floor(np.log10(max(size, 1.0))) - 2))
    return f"{np.ceil(size / step) * step / _GB:.9g}"
