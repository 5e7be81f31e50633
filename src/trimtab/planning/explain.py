"""Why the largest rank of a plan is the largest, and what would help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.feasibility import smallest_degree
from trimtab.planning.loads import cost_at_degree, sharded_loads
from trimtab.planning.metrics import plan_metrics
from trimtab.planning.settings import PlanSettings
from trimtab.planning.sharding_problem import largest_degree
from trimtab.planning.step import plan_step
from trimtab.planning.strategies import strategy_named
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
    strategy = strategy_named(plan.strategy)
    shards = strategy.shards
    lines = [
        f"step {plan.step_ns * _MS:.1f} ms, {gap:.2%} above the lower bound "
        f"{'at any degree' if shards else 'for whole samples'}; "
        f"in the given order it would take {plan.current_step_ns * _MS:.1f} ms"
    ]
    if shards:
        lines.append(_degrees(plan))
    lines.append(_attention(plan, batch, largest_degree(strategy, costs, settings)))
    if plan.exchange_ns:
        lines.append(f"exchange of embeddings: {plan.exchange_ns * _MS:.1f} ms")
    phases = _phases(plan)
    lines += [phase.line() for phase in phases if phase.slowest_ns]
    worst = max(phases, key=_excess)
    balanced = _balanced_ns(plan, batch, costs, settings)
    if balanced is not None and balanced < plan.step_ns * (1 - _GOOD_ENOUGH):
        return [
            *lines,
            f"balance it: whole-sample takes {balanced * _MS:.1f} ms, not {plan.step_ns * _MS:.1f}",
        ]
    return [*lines, *_advice(plan, batch, costs, settings, worst, gap)]


def _balanced_ns(plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings) -> int | None:
    """Step time of our plan of whole samples, where the plan is another strategy's."""
    if plan.strategy in ("whole-sample", "adaptive"):
        return None
    try:
        return plan_step(batch, costs, plan.ranks, replace(settings, strategy="whole-sample")).step_ns
    except (InfeasibleError, SettingsError):
        return None


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
    there = (plan.rank <= phase.rank) & (phase.rank < plan.rank + plan.degree)
    return np.flatnonzero(there if plan.sync == "step" else there & (plan.micro_batch == phase.micro_batch))


def _degrees(plan: StepPlan) -> str:
    """How many samples have which degree."""
    counts = [f"{int((plan.degree == degree).sum())} at {degree}" for degree in np.unique(plan.degree).tolist()]
    return f"samples by degree: {', '.join(counts)}"


def _attention(plan: StepPlan, batch: BatchMetadata, max_degree: int) -> str:
    """How uneven attention is, and what its largest sample leaves no plan a way around."""
    metrics = plan_metrics(plan, batch, max_degree)
    kind = f"plan at degrees up to {max_degree}" if max_degree > 1 else "plan of whole samples"
    return f"attention ratio {metrics.attention_ratio:.3f}; no {kind} is below {metrics.attention_floor:.3f}"


def _advice(
    plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings, worst: _Phase, gap: float
) -> list[str]:
    if plan.exchange_ns > max(worst.excess_ns, _GOOD_ENOUGH * plan.step_ns):
        return [
            f"links: sending embeddings takes {plan.exchange_ns / plan.step_ns:.0%} of the step; larger micro-batches, "
            "faster links, or visuals encoded where their samples are (balance_vision=False)"
        ]
    if worst.excess_ns <= _GOOD_ENOUGH * plan.step_ns:
        return ["nothing to improve: ranks are within 1 % of even"]
    if worst.name == "vision":
        return _vision_advice(plan, batch, costs, settings, worst)
    rows = _rows(plan, worst)
    on_rank = cost_at_degree(costs, plan.degree)
    row = int(rows[on_rank[rows].argmax()]) if len(rows) else 0
    if len(rows) and on_rank[row] > worst.mean_ns:
        return _too_long(plan, batch, costs, settings, worst, row, int(on_rank[row]))
    held = int((-(-batch.tokens[rows] // plan.degree[rows])).sum())
    cap = settings.max_tokens_per_micro_batch
    if cap is not None and held < cap and _a_rank_is_full(plan, batch, cap):
        return [f"cap: ranks are filled to max_tokens_per_micro_batch={cap}; a larger cap would let samples move"]
    if settings.equal_counts:
        return ["cap: equal_counts keeps samples from moving; allow unequal counts if the host does"]
    if gap <= _GOOD_ENOUGH:
        return ["nothing to improve: no plan of this kind is 1 % faster"]
    shard = "" if strategy_named(plan.strategy).shards else ", or shard"
    return [f"few samples: {len(batch)} on {plan.ranks} ranks leave holes; take more samples a step{shard}"]


def _too_long(
    plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings, worst: _Phase, row: int, alone_ns: int
) -> list[str]:
    """One sample takes longer than the mean rank, at the degree it has."""
    now = int(plan.degree[row])
    at_degree = f" at degree {now}" if now > 1 else ""
    found = (
        f"sample {batch.sample_ids[row]} alone ({int(batch.tokens[row])} tokens{at_degree}) "
        f"takes {alone_ns * _MS:.1f} ms, more than the mean rank"
    )
    degree = smallest_degree(int(costs.language_ns[row]), max(1, int(worst.mean_ns)), costs.legal_degrees)
    if degree is None or degree <= now:
        return [found, "no legal degree brings it under the mean; take more samples a step"]
    shard_it = f"shard it: a sequence-parallel degree of {degree} brings it under the mean"
    if degree > plan.ranks:
        return [found, f"{shard_it}; that needs {degree} ranks, there are {plan.ranks}"]
    if degree > settings.max_degree:
        return [found, f"{shard_it}; that needs a max_degree above {settings.max_degree}"]
    return [found, f"{shard_it}; no whole-sample plan can" if now == 1 else shard_it]


def _vision_advice(
    plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings, worst: _Phase
) -> list[str]:
    if not settings.balance_vision or strategy_named(plan.strategy).vision != "spread":
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
    shape = (plan.micro_batches, plan.ranks)
    held = sharded_loads(-(-batch.tokens // plan.degree), plan.rank, plan.micro_batch, plan.degree, shape)
    return bool((held >= _CAP_IS_TIGHT * cap).any())
