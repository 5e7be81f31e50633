"""Gathers every rank's figures after a step and builds its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.cost.rank_work import RankWork
from trimtab.loader.step_loader import LoadedStep
from trimtab.planning.loads import sharded_loads
from trimtab.runtime.recorder import COMPUTE_PHASES, PhaseTimes
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.reports import StepReport

PHASES = ("data", "vision", "exchange", "language", "optimizer")


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """One rank's figures of one step; see ``StepReport`` for units."""

    loss: float
    step_ms: float
    times: PhaseTimes
    moved_bytes: int
    peak_memory_bytes: int
    stop: bool


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """A step's report, and whether any rank was asked to stop."""

    report: StepReport
    stop: bool


def gather_report(
    loaded: LoadedStep, figures: RankFigures, *, rate: float, grad_norm: float | None, group: dist.ProcessGroup
) -> StepOutcome:
    """Combine all ranks' figures; a collective of ``group`` (gloo), with the same result on every rank."""
    phases = [figures.times.wall_ms.get(phase, 0.0) for phase in PHASES]
    compute = [figures.times.compute_ms.get(phase, 0.0) for phase in COMPUTE_PHASES]
    mine = [figures.loss, figures.step_ms, loaded.wait_ms, loaded.decoded]
    mine += [
        figures.moved_bytes + loaded.received_bytes,
        float(figures.stop),
        figures.peak_memory_bytes,
        *phases,
        *compute,
    ]
    gathered = torch.empty(group.size() * len(mine), dtype=torch.float64)
    dist.all_gather_single(gathered, torch.tensor(mine, dtype=torch.float64), group=group)
    loss, step_ms, wait, decoded, moved, stop, memory, *times = gathered.view(group.size(), -1).numpy().T
    walls, busy = times[: len(PHASES)], times[len(PHASES) :]
    planned = loaded.planned
    report = StepReport(
        step=planned.step,
        loss=float(loss.sum()),
        loss_tokens=int(planned.batch.loss_tokens.sum()) if loaded.denominator else 0,
        tokens=int(planned.batch.tokens.sum()),
        samples=len(planned.batch),
        step_ms=float(step_ms.max()),
        exposed_data_ms=float(wait.max()),
        phases_ms={phase: _rounded(times) for phase, times in zip(PHASES, walls, strict=True)},
        rank_ms=_rounded(np.sum(busy, axis=0)),
        predicted_rank_ms=_rounded(predicted_rank_ns(planned.plan) / 1e6),
        step_ratio_before=step_ratio(planned.plan, planned.plan.current_step_ns),
        step_ratio=step_ratio(planned.plan, planned.plan.step_ns),
        bound_ratio=_ratio(planned.plan.step_ns, planned.plan.lower_bound_ns),
        vision_ratio=_spread(planned.plan.vision_ns.sum(axis=0)),
        token_ratio=_spread(tokens_of_ranks(planned.plan, planned.batch.tokens)),
        observed_step_ratio=step_ratio(planned.gain, planned.gain.step_ns) if planned.gain else None,
        planning_ms=planned.planning_ms,
        moved_bytes=int(moved.sum()),
        decoded=[int(count) for count in decoded],
        learning_rate=rate,
        grad_norm=grad_norm,
        bad_samples=[one.sample_id for one in loaded.bad_samples],
        rank_work=rank_work(planned.plan, planned.batch.tokens).to_json(),
        vision_work=vision_work(planned.plan, planned.batch).to_json(),
        compute_ms={phase: _rounded(one) for phase, one in zip(COMPUTE_PHASES, busy, strict=True)},
        compute_includes_waiting=figures.times.includes_waiting,
        peak_memory_bytes=[int(peak) for peak in memory],
        degrees=samples_by_degree([planned.plan]),
        all_to_all_bytes=planned.plan.shared_bytes,
    )
    return StepOutcome(report=report, stop=bool(stop.any()))


def predicted_rank_ns(plan: StepPlan) -> NDArray[np.int64]:
    """int64 [R], predicted work of each rank over the step."""
    return plan.language_ns.sum(axis=0) + plan.vision_ns.sum(axis=0)


def vision_work(plan: StepPlan, batch: BatchMetadata) -> RankWork:
    """What each rank encodes: every frame counts as a sequence of its patches."""
    units = plan.units
    frames = units.frame_stop - units.frame_start
    patches = batch.grid_thw[units.visual, 1] * batch.grid_thw[units.visual, 2]
    return RankWork.of(np.repeat(patches, frames), np.repeat(units.rank, frames), plan.ranks)


def step_ratio(plan: StepPlan, step_ns: int) -> float:
    """See ``schema.reports.GLOSSARY``."""
    return _ratio(step_ns, plan.work_ns / plan.ranks)


def tokens_of_ranks(plan: StepPlan, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [R], language-model tokens of each rank over the step."""
    return _on_ranks(plan, -(-tokens // plan.degree))


def samples_by_degree(plans: Sequence[StepPlan]) -> dict[str, int]:
    """How many samples of the plans have which degree; degrees are text, as JSON wants keys."""
    if not plans:
        return {}
    degrees, counts = np.unique(np.concatenate([plan.degree for plan in plans]), return_counts=True)
    return {str(degree): count for degree, count in zip(degrees.tolist(), counts.tolist(), strict=True)}


def rank_work(plan: StepPlan, tokens: NDArray[np.int64]) -> RankWork:
    """What each rank ran; of a shared sample its share of the attention and of the tokens, and the sample."""
    squares = -(-tokens * tokens // plan.degree)
    return RankWork(
        squared_tokens=_on_ranks(plan, squares),
        tokens=tokens_of_ranks(plan, tokens),
        samples=_on_ranks(plan, np.ones_like(tokens)),
    )


def _on_ranks(plan: StepPlan, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums over the step [R] of samples' values (int64 [N], of each rank of their nodes)."""
    first_micro_batch = np.zeros_like(plan.micro_batch)
    loads = sharded_loads(values, plan.rank, first_micro_batch, plan.degree, (1, plan.ranks))
    return np.asarray(loads[0])


def _spread(loads: NDArray[np.int64]) -> float:
    return _ratio(float(loads.max()), float(loads.mean()))


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference else 1.0


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 3) for value in values]
