"""What each rank of a pipeline holds at most, layer by layer through the order of its forwards and backwards.

``StagePlan.memory`` is a bound under which a plan must stay: all activations in flight beside the layer that needs most
room to run. Here a layer that recomputes is met with the activations of the layers after it already gone, so the peak
is at most that, and what a run takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.planning.pipeline_schedule import rank_actions
from trimtab.schema.stages import LayerProfile, StagePlan


def peak_bytes(plan: StagePlan, profile: LayerProfile) -> tuple[int, ...]:
    """[P], the most bytes each rank holds in a step, state included.

    Args:
        plan: of the layers of ``profile``.
        profile: at the largest micro-batch.
    """
    order = rank_actions(plan.schedule, plan.ranks, plan.chunks, plan.micro_batches)
    peaks = []
    for rank in range(plan.ranks):
        stages = {stage: _stage(plan, profile, stage) for stage in range(rank, len(plan.bounds) - 1, plan.ranks)}
        held = peak = sum(stage.state for stage in stages.values())
        for action in order[rank]:
            stage = stages[action.stage]
            peak = max(peak, held + (stage.backward_peak if action.backward else stage.forward_peak))
            held += -stage.kept if action.backward else stage.kept
        peaks.append(peak)
    return tuple(peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Bytes of one stage: state, what a micro-batch leaves, and the most beyond what is held before either way."""

    state: int
    kept: int
    forward_peak: int
    backward_peak: int


def _stage(plan: StagePlan, profile: LayerProfile, stage: int) -> _Stage:
    rows = np.arange(plan.bounds[stage], plan.bounds[stage + 1])
    recomputes = np.isin(rows, plan.recompute[stage])
    kept = np.where(recomputes, profile.recomputed_bytes[rows], profile.activation_bytes[rows])
    sent = 0 if rows[-1] == len(profile) - 1 else int(profile.boundary_bytes[rows[-1]])
    so_far = np.cumsum(kept) + profile.workspace_bytes[rows]
    again = profile.activation_bytes[rows] - kept
    return _Stage(
        state=int(profile.state_bytes[rows].sum()),
        kept=int(kept.sum()) + sent,
        forward_peak=int(so_far.max()) + sent,
        backward_peak=int((so_far + again).max()) + sent - int(kept.sum()) - sent,
    )
