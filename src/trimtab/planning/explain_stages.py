"""What holds a pipeline up, and what fills its memory."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.stages import LayerKind, LayerProfile, RecomputePlan, StagePlan

_MS = 1e-6
_GB = 1e-9
_GOOD_ENOUGH = 0.01
_NEARLY_FULL = 0.97


def explain_stages(plan: StagePlan, profile: LayerProfile) -> list[str]:
    """A few lines: how long the step is, which rank it waits for and why, each rank's memory, and what would help.

    Args:
        plan: made from the profile.
        profile: of the model.
    """
    lines = [_step(plan), _bottleneck(plan, profile)]
    if profile.spread is not None:
        lines.append(_spread(plan, profile))
    lines += [_memory(plan, profile, rank) for rank in range(plan.ranks)]
    return [*lines, _advice(plan, profile)]


def explain_recompute(plan: RecomputePlan, profile: LayerProfile) -> list[str]:
    """Which layers recompute, and what that saves.

    Args:
        plan: made from the profile.
        profile: of the model.
    """
    rows = np.flatnonzero(plan.recompute)
    which = _layers_by_kind(profile, rows) if len(rows) else "none"
    return [
        f"recomputes {which} of {len(profile)} layers: {plan.bytes_saved * _GB:.2f} GB less than without, and "
        f"{plan.time_saved_ns * _MS:.1f} ms a micro-batch less than recomputing every layer",
        f"predicted peak {plan.peak_bytes * _GB:.2f} GB of {plan.budget_bytes * _GB:g} GB"
        + ("" if plan.exact else "; a better choice may exist, the search was cut short"),
    ]


def _step(plan: StagePlan) -> str:
    known = ""
    if plan.lower_bound_ns:
        gap = plan.step_ns / plan.lower_bound_ns - 1
        known = f", {gap:.2%} above the lower bound" if gap else ", proven least"
    return (
        f"step {plan.step_ns * _MS:,.1f} ms for {plan.micro_batches} micro-batches{known}; "
        f"the mean rank is idle {plan.bubble:.1%} of it"
    )


def _bottleneck(plan: StagePlan, profile: LayerProfile) -> str:
    rank, mean = plan.bottleneck, sum(plan.rank_ns) / plan.ranks
    repeated = sum(int(profile.recompute_ns[list(rows)].sum()) for rows in plan.recompute[rank :: plan.ranks] if rows)
    stages = range(rank, len(plan.recompute), plan.ranks)
    layers = " and ".join(_span(profile, plan.bounds[stage], plan.bounds[stage + 1]) for stage in stages)
    again = f", {repeated * _MS:.1f} ms of them recomputing" if repeated else ""
    return (
        f"rank {rank} computes longest: {plan.rank_ns[rank] * _MS:.1f} ms a micro-batch{again}, "
        f"{plan.rank_ns[rank] / mean:.2f} times the mean; it holds {layers}"
    )


def _span(profile: LayerProfile, start: int, stop: int) -> str:
    first, last = profile.names[start], profile.names[stop - 1]
    return first if stop - start == 1 else f"{first} to {last}"


def _spread(plan: StagePlan, profile: LayerProfile) -> str:
    """How unevenly stages compute over the recorded micro-batches, which differ from the one planned for."""
    assert profile.spread is not None
    work = profile.spread.forward_ns + profile.spread.backward_ns
    stages = np.add.reduceat(work, plan.bounds[:-1], axis=1)
    ranks = np.stack([stages[:, rank :: plan.ranks].sum(axis=1) for rank in range(plan.ranks)], axis=1)
    ratio = ranks.max(axis=1) / ranks.mean(axis=1)
    return (
        f"over {len(work)} recorded micro-batches, without recomputation, the slowest rank computes {ratio.mean():.2f} "
        f"times the mean ({ratio.min():.2f} to {ratio.max():.2f})"
    )


def _memory(plan: StagePlan, profile: LayerProfile, rank: int) -> str:
    memory = plan.memory[rank]
    stages = range(rank, len(plan.recompute), plan.ranks)
    rows = np.array([row for stage in stages for row in plan.recompute[stage]], dtype=np.int64)
    layers = sum(plan.bounds[stage + 1] - plan.bounds[stage] for stage in stages)
    chosen = _layers_by_kind(profile, rows) if len(rows) else "none"
    flying = " + ".join(str(plan.in_flight[stage]) for stage in stages)
    flying += " micro-batch" if flying == "1" else " micro-batches"
    over = "" if memory.peak <= plan.memory_bytes else f", over the cap of {plan.memory_bytes * _GB:g} GB"
    return (
        f"rank {rank}: {memory.peak * _GB:.1f} GB = {memory.state * _GB:.1f} state + {memory.activations * _GB:.1f} "
        f"activations of {flying} + {memory.transient * _GB:.1f} while a layer runs{over}; "
        f"{chosen} of {layers} layers recompute"
    )


def _layers_by_kind(profile: LayerProfile, rows: NDArray[np.int64]) -> str:
    kinds = [profile.kinds[row] for row in rows.tolist()]
    return " and ".join(f"{kinds.count(kind)} {kind}" for kind in get_args(LayerKind) if kind in kinds)


def _advice(plan: StagePlan, profile: LayerProfile) -> str:
    if not plan.fits:
        worst = max(plan.memory, key=lambda memory: memory.peak)
        return f"does not fit: needs {worst.peak * _GB:.1f} GB on its fullest rank"
    rank, mean = plan.bottleneck, sum(plan.rank_ns) / plan.ranks
    excess = plan.rank_ns[rank] - mean
    recomputes = any(plan.recompute[rank :: plan.ranks])
    if recomputes and plan.memory[rank].peak > _NEARLY_FULL * plan.memory_bytes:
        return (
            f"memory: rank {rank} is full and recomputes; more memory, or more ranks that share optimizer state, helps"
        )
    work = profile.forward_ns + profile.backward_ns
    if excess > _GOOD_ENOUGH * mean and excess < work.max():
        return f"layers: the largest takes {int(work.max()) * _MS:.1f} ms, so no cut evens ranks further by much"
    if excess > _GOOD_ENOUGH * mean:
        return f"cuts: rank {rank} has more than its share; move a cut, or plan stages jointly"
    return "ranks are within 1 % of even; more micro-batches a step shrink the idle share"
