"""Why the largest rank of a plan is the largest, and what would help."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.feasibility import smallest_degree
from trimtab.planning.settings import PlanSettings
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan

_GOOD_ENOUGH = 0.01
_CAP_IS_TIGHT = 0.9
_MS = 1e-6


def explain(plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings) -> list[str]:
    """A few lines: how uneven the plan is, what holds the slowest rank up, and what would help.

    Args:
        plan: made by ``plan_step`` from the other arguments.
        batch: its samples.
        costs: their costs.
        settings: the settings it was made under.

    Returns:
        Lines for a person, the last one the advice: shard, split, cap, or nothing.
    """
    if len(batch) == 0 or plan.step_ns == 0:
        return ["no work in this step", "nothing to improve"]
    gap = plan.step_ns / max(1, plan.lower_bound_ns) - 1
    lines = [
        f"step {plan.step_ns * _MS:.1f} ms, {gap:.2%} above the lower bound for whole samples; "
        f"in the given order it would take {plan.current_step_ns * _MS:.1f} ms"
    ]
    phases = _phases(plan)
    lines += [phase.line() for phase in phases if phase.slowest_ns]
    worst = max(phases, key=_excess)
    return [*lines, *_advice(plan, batch, costs, settings, worst, gap)]


def _phases(plan: StepPlan) -> list[_Phase]:
    """What ranks wait for: vision and language apart, or their sum, in a micro-batch or over the step."""
    if plan.sync == "layer":
        return [_Phase("language", plan.language_ns), _Phase("vision", plan.vision_ns)]
    both = plan.language_ns + plan.vision_ns
    return [_Phase("language and vision", both if plan.sync == "micro_batch" else both.sum(axis=0)[None])]


class _Phase:
    """The meeting point at which one phase is most uneven, and its slowest rank."""

    def __init__(self, name: str, loads: NDArray[np.int64]) -> None:
        self.name = name
        excess = loads.max(axis=1) - loads.mean(axis=1)
        self.micro_batch = int(excess.argmax())
        self.rank = int(loads[self.micro_batch].argmax())
        self.slowest_ns = int(loads[self.micro_batch, self.rank])
        self.mean_ns = float(loads[self.micro_batch].mean())
        self.excess_ns = float(excess.max())
        self.of_several = len(loads) > 1

    def _where(self) -> str:
        return f" in micro-batch {self.micro_batch}" if self.of_several else ""

    def line(self) -> str:
        return (
            f"{self.name}: rank {self.rank} is the largest{self._where()} with "
            f"{self.slowest_ns * _MS:.1f} ms, {self.slowest_ns / self.mean_ns:.2f} times the mean"
        )


def _excess(phase: _Phase) -> float:
    return phase.excess_ns


def _rows(plan: StepPlan, phase: _Phase) -> NDArray[np.int64]:
    """Samples of the slowest rank at that meeting point."""
    if plan.sync == "step":
        return np.flatnonzero(plan.rank == phase.rank)
    return plan.rows(phase.rank, phase.micro_batch)


def _advice(
    plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings, worst: _Phase, gap: float
) -> list[str]:
    if worst.excess_ns <= _GOOD_ENOUGH * plan.step_ns:
        return ["nothing to improve: ranks are within 1 % of even"]
    if worst.name == "vision":
        return _vision_advice(plan, batch, costs, settings, worst)
    rows = _rows(plan, worst)
    row = int(rows[costs.language_ns[rows].argmax()]) if len(rows) else 0
    alone = int(costs.language_ns[row]) if len(rows) else 0
    if alone > worst.mean_ns:
        degree = smallest_degree(alone, max(1, int(worst.mean_ns)))
        return [
            f"sample {batch.sample_ids[row]} alone ({int(batch.tokens[row])} tokens) takes {alone * _MS:.1f} ms, "
            "more than the mean rank",
            f"shard it: a sequence-parallel degree of {degree} brings it under the mean; no whole-sample plan can",
        ]
    held = int(batch.tokens[rows].sum())
    cap = settings.max_tokens_per_micro_batch
    if cap is not None and held < cap and _a_rank_is_full(plan, batch, cap):
        return [f"cap: ranks are filled to max_tokens_per_micro_batch={cap}; a larger cap would let samples move"]
    if settings.equal_counts:
        return ["cap: equal_counts keeps samples from moving; allow unequal counts if the host does"]
    if gap <= _GOOD_ENOUGH:
        return ["nothing to improve: no plan of whole samples is 1 % faster"]
    return [f"few samples: {len(batch)} on {plan.ranks} ranks leave holes; take more samples a step, or shard"]


def _vision_advice(
    plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings, worst: _Phase
) -> list[str]:
    if not settings.balance_vision or plan.strategy != "whole-sample":
        return ["split: visuals are encoded where their samples are; balance_vision spreads them over ranks"]
    units = plan.unit_rows(worst.rank, worst.micro_batch)
    visual = int(plan.units.visual[units][costs.vision_frame_ns[plan.units.visual[units]].argmax()])
    _, height, width = batch.grid_thw[visual].tolist()
    sample = batch.sample_ids[int(batch.sample_of_visual[visual])]
    return [
        f"split: a frame of {height}x{width} patches (sample {sample}) cannot be split between ranks; "
        "a lower pixel limit would"
    ]


def _a_rank_is_full(plan: StepPlan, batch: BatchMetadata, cap: int) -> bool:
    held = np.zeros((plan.micro_batches, plan.ranks), dtype=np.int64)
    np.add.at(held, (plan.micro_batch, plan.rank), batch.tokens)
    return bool((held >= _CAP_IS_TIGHT * cap).any())
