"""Decides where samples go: a plan for each of the host's micro-batches, a pure function of gathered metadata."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.runtime.host_batch import HostLayout
from trimtab.runtime.step_metadata import StepMetadata
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan, Sync, digest_of

CostModel = Callable[[BatchMetadata], Costs]


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Where each sample of a step runs.

    Attributes:
        rank, micro_batch: int64 [N].
        micro_batches: of every rank.
        step_ns, current_step_ns, bound_ns: predicted, summed over micro-batches: of what runs, of the order samples
            came in, and the bound.
        best_ns: of the best plan found, whether it runs or not.
        mean_ns: predicted work / ranks.
        applied: micro-batches whose samples move.
        reason: why the others stay, of the last that does; empty where all move.
    """

    rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    micro_batches: int
    step_ns: int
    current_step_ns: int
    bound_ns: int
    best_ns: int
    mean_ns: float
    applied: int
    reason: str

    def digest(self) -> str:
        """Sixteen hex digits, compared before anything moves."""
        return digest_of(self)


def place_samples(
    metadata: StepMetadata,
    layout: HostLayout,
    cost_model: CostModel,
    ranks: int,
    settings: BalancerSettings,
    *,
    moving: bool,
) -> Placement:
    """Plan each micro-batch over all ranks; with ``sync="step"`` later ones make up for earlier ones.

    Args:
        metadata: of the step.
        layout: of the model.
        cost_model: what samples cost.
        ranks: R.
        settings: of the balancer.
        moving: whether samples may move in this step.

    Raises:
        InfeasibleError: a sample exceeds a hard cap, or no arrangement within the caps was found.
        SettingsError: the settings contradict each other.
    """
    rank, micro_batch = metadata.rank.copy(), np.zeros(len(metadata), dtype=np.int64)
    tally = _Tally(ranks, settings.plan.sync)
    out, applied, reason = 0, 0, ""
    for index in range(metadata.micro_batches):
        rows = np.flatnonzero(metadata.micro_batch == index)
        batch, came_on = metadata.batch(rows, layout), metadata.rank[rows]
        costs = cost_model(batch)
        plan, why = _plan(batch, costs, came_on, ranks, settings, tally.history)
        why = why or _why_not(plan, metadata.tokens[rows], came_on, settings, moving)
        why = why or _unstackable(metadata, rows, layout)
        micro_batch[rows], used = out, 1
        if why:
            reason = why
        else:
            rank[rows], used, applied = plan.rank, plan.micro_batches, applied + 1
            micro_batch[rows] = out + plan.micro_batch
        tally.add(plan, _loads(batch, costs, came_on, ranks), runs=not why, moving=moving)
        out += used
    return Placement(
        rank=rank,
        micro_batch=micro_batch,
        micro_batches=out,
        step_ns=tally.runs_ns,
        current_step_ns=tally.before_ns,
        bound_ns=tally.bound_ns,
        best_ns=tally.best_ns,
        mean_ns=tally.work_ns / ranks,
        applied=applied,
        reason=reason,
    )


class _Tally:
    """Predicted times over the micro-batches of a step, summed where ranks meet in each, else load by load."""

    def __init__(self, ranks: int, sync: Sync) -> None:
        self._summed = sync != "step"
        self._before, self._runs, self._best = (np.zeros(ranks, dtype=np.int64) for _ in range(3))
        self.before_ns = self.runs_ns = self.best_ns = self.bound_ns = self.work_ns = 0
        self.history: NDArray[np.int64] | None = None if self._summed else self._runs

    def add(self, plan: StepPlan, before: NDArray[np.int64], *, runs: bool, moving: bool) -> None:
        """Count a micro-batch: its plan, and the loads [R] of the ranks its samples came on."""
        planned = np.asarray(plan.language_ns.sum(axis=0) + plan.vision_ns.sum(axis=0))
        self.work_ns += int(planned.sum())
        if self._summed:
            self.before_ns += plan.current_step_ns
            self.runs_ns += plan.step_ns if runs else plan.current_step_ns
            self.best_ns += plan.step_ns
            self.bound_ns += plan.lower_bound_ns
            return
        self._before = self._before + before
        self._runs = self._runs + (planned if runs else before)
        self._best = self._best + planned
        self.before_ns, self.runs_ns = int(self._before.max()), int(self._runs.max())
        self.best_ns, self.bound_ns = int(self._best.max()), plan.lower_bound_ns
        # what is only observed is planned as if its plans had run
        self.history = self._runs if moving else self._best


def _plan(
    batch: BatchMetadata,
    costs: Costs,
    current: NDArray[np.int64],
    ranks: int,
    settings: BalancerSettings,
    history: NDArray[np.int64] | None,
) -> tuple[StepPlan, str]:
    limited = _with_length_ratio(settings, batch, ranks)
    try:
        return plan_step(batch, costs, ranks, limited, history=history, current_rank=current), ""
    except InfeasibleError:
        if limited is settings.plan:
            raise
    plan = plan_step(batch, costs, ranks, settings.plan, history=history, current_rank=current)
    return plan, f"no plan within length ratio {settings.length_ratio:g}"


def _with_length_ratio(settings: BalancerSettings, batch: BatchMetadata, ranks: int) -> PlanSettings:
    if settings.length_ratio is None or not len(batch):
        return settings.plan
    tokens = batch.tokens
    # one long sample must lie somewhere, whatever the ratio
    cap = max(math.ceil(settings.length_ratio * float(tokens.sum()) / ranks), int(tokens.max()), 1)
    hard = settings.plan.max_tokens_per_rank
    return settings.plan if hard is not None and hard <= cap else replace(settings.plan, max_tokens_per_rank=cap)


def _why_not(
    plan: StepPlan,
    tokens: NDArray[np.int64],
    current: NDArray[np.int64],
    settings: BalancerSettings,
    moving: bool,
) -> str:
    """Why a plan is not run; empty where it is."""
    if not moving:
        return "only observed"
    if plan.micro_batches > 1 or _exceeds(tokens, current, settings.plan.max_tokens_per_rank):
        return ""  # what came breaks a cap
    if np.array_equal(plan.rank, current):
        return "nothing better found"
    gain = 1 - plan.step_ns / plan.current_step_ns if plan.current_step_ns else 0.0
    return "" if gain >= settings.threshold else f"gain {gain:.1%} below threshold {settings.threshold:.1%}"


def _unstackable(metadata: StepMetadata, rows: NDArray[np.int64], layout: HostLayout) -> str:
    """Families that stack videos without saying their lengths can only stack equal ones."""
    visuals = metadata.visuals[np.isin(metadata.sample_of_visual, rows)]
    for index, stream in enumerate(layout.streams):
        if stream.padded and not stream.beside and len(set(visuals[visuals[:, 0] == index, 4].tolist())) > 1:
            return f"{stream.kind}s of different lengths cannot share a batch"
    return ""


def _exceeds(tokens: NDArray[np.int64], current: NDArray[np.int64], cap: int | None) -> bool:
    return cap is not None and bool((np.bincount(current, weights=tokens) > cap).any())


def _loads(batch: BatchMetadata, costs: Costs, rank: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """int64 [R], what each rank spends where the samples run on ``rank``."""
    loads = np.zeros(ranks, dtype=np.int64)
    np.add.at(loads, rank, costs.language_ns)
    np.add.at(loads, rank[batch.sample_of_visual], costs.vision_frame_ns * batch.grid_thw[:, 0])
    return loads
