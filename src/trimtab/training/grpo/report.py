"""What a GRPO step did: one row of ``steps.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimtab.cost.rank_work import RankWork
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.reports import StepReport
from trimtab.training.grpo.experience import Experience, Scored
from trimtab.training.grpo.phases import PHASES
from trimtab.training.grpo.rollout import RolloutPlan
from trimtab.training.grpo.update import MiniBatch, UpdateFigures
from trimtab.training.step_report import predicted_rank_ns, rank_work, samples_by_degree, step_ratio, tokens_of_ranks


@dataclass(frozen=True, kw_only=True)
class GRPOReport(StepReport):
    """One GRPO step; plan figures of ``StepReport`` are those of an epoch's update, ``loss_tokens`` are reply tokens.

    Attributes:
        reward_mean, reward_std: over all replies.
        equal_groups: groups of equal rewards, whose advantages are 0.
        replies: replies that were scored.
        cut_replies: ended by the length limit.
        empty_replies: that held nothing but an end token.
        logprob_difference_mean, logprob_difference_max: |log-probability at rollout - at inference| of a token; None
            where the engine does not tell the former.
        clip_fraction: share of tokens whose ratio was clipped.
        kl: mean divergence of a token from the reference.
        phase_rank_ms: time each rank was busy in each phase.
        rollout_ratio: predicted step ratio of the rollout's plan.
    """

    reward_mean: float
    reward_std: float
    equal_groups: int
    replies: int
    cut_replies: int
    empty_replies: int
    logprob_difference_mean: float | None
    logprob_difference_max: float | None
    clip_fraction: float
    kl: float
    phase_rank_ms: dict[str, list[float]] = field(default_factory=dict)
    rollout_ratio: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, rewards first."""
        plain = super().to_json()
        first = ("step", "reward_mean", "reward_std", "equal_groups", "replies")
        return {**{name: plain[name] for name in first}, **plain}


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One rank's own figures of a step."""

    wall_ms: dict[str, float]
    busy_ms: dict[str, float]
    step_ms: float
    decoded: int
    moved_bytes: int
    peak_memory_bytes: int
    update: UpdateFigures
    stop: bool


def gather_report(
    step: int,
    experience: Experience,
    scored: Scored,
    loaded: list[MiniBatch],
    rollout: RolloutPlan,
    own: RankStep,
    *,
    bad: list[str],
    planning_ms: float,
    group: dist.ProcessGroup,
) -> tuple[GRPOReport, bool]:
    """Combine all ranks' figures, and say whether any was asked to stop; a collective of ``group`` (gloo)."""
    update = own.update
    mine = [own.step_ms, own.decoded, own.moved_bytes, update.loss, update.clipped, update.kl, update.tokens, own.stop]
    mine.append(own.peak_memory_bytes)
    mine += [own.wall_ms[phase] for phase in PHASES] + [own.busy_ms[phase] for phase in PHASES]
    gathered = torch.empty(group.size() * len(mine), dtype=torch.float64)
    dist.all_gather_single(gathered, torch.tensor([float(x) for x in mine], dtype=torch.float64), group=group)
    step_ms, decoded, moved, loss, clipped, kl, tokens, stop, memory, *times = gathered.view(group.size(), -1).numpy().T
    walls, busy = times[: len(PHASES)], times[len(PHASES) :]
    plans = [(mini_batch.plan, mini_batch.batch) for mini_batch in loaded]
    token_count = max(1.0, float(tokens.sum()))
    report = GRPOReport(
        step=step,
        loss=float(loss.sum()),
        loss_tokens=int(experience.reply_tokens.sum()),
        tokens=int(experience.batch.tokens.sum()),
        samples=len(experience.prompts),
        step_ms=float(step_ms.max()),
        exposed_data_ms=float(walls[0].max()),
        phases_ms={phase: _rounded(wall) for phase, wall in zip(PHASES, walls, strict=True)},
        rank_ms=_rounded(np.sum(busy[1:], axis=0)),
        decoded=[int(count) for count in decoded],
        moved_bytes=int(moved.sum()),
        learning_rate=update.learning_rate,
        grad_norm=update.grad_norm,
        planning_ms=planning_ms,
        bad_samples=bad,
        peak_memory_bytes=[int(peak) for peak in memory],
        clip_fraction=float(clipped.sum()) / token_count,
        kl=float(kl.sum()) / token_count,
        phase_rank_ms={phase: _rounded(one) for phase, one in zip(PHASES, busy, strict=True)},
        rollout_ratio=step_ratio(rollout.plan, rollout.plan.step_ns),
        **_plan_figures(plans, group.size()),
        **_reply_figures(experience, scored),
    )
    return report, bool(stop.any())


def _plan_figures(plans: list[tuple[StepPlan, BatchMetadata]], ranks: int) -> dict[str, Any]:
    """Of the optimizer steps one after another: times and bounds add up."""
    work = np.sum([predicted_rank_ns(plan) for plan, _ in plans], axis=0) if plans else np.zeros(ranks)
    mean = float(work.sum()) / ranks
    took, before, bound = (
        float(sum(getattr(plan, name) for plan, _ in plans))
        for name in ("step_ns", "current_step_ns", "lower_bound_ns")
    )
    vision = np.sum([plan.vision_ns.sum(axis=0) for plan, _ in plans], axis=0) if plans else work
    tokens = np.sum([tokens_of_ranks(plan, batch.tokens) for plan, batch in plans], axis=0) if plans else work
    return {
        "predicted_rank_ms": _rounded(work / 1e6),
        "step_ratio_before": _ratio(before, mean),
        "step_ratio": _ratio(took, mean),
        "bound_ratio": _ratio(took, bound),
        "vision_ratio": _ratio(float(vision.max()), float(vision.mean())),
        "token_ratio": _ratio(float(tokens.max()), float(tokens.mean())),
        "observed_step_ratio": None,
        "rank_work": _rank_work(plans, ranks).to_json(),
        "degrees": samples_by_degree([plan for plan, _ in plans]),
        "all_to_all_bytes": sum(plan.shared_bytes for plan, _ in plans),
    }


def _rank_work(plans: list[tuple[StepPlan, BatchMetadata]], ranks: int) -> RankWork:
    """What each rank ran in one epoch over the mini-batches."""
    none = np.zeros(ranks, dtype=np.int64)
    total = RankWork(squared_tokens=none, tokens=none, samples=none)
    for plan, batch in plans:
        work = rank_work(plan, batch.tokens)
        total = RankWork(
            squared_tokens=total.squared_tokens + work.squared_tokens,
            tokens=total.tokens + work.tokens,
            samples=total.samples + work.samples,
        )
    return total


def _reply_figures(experience: Experience, scored: Scored) -> dict[str, Any]:
    sampled = [reply.logprobs for reply in experience.replies]
    difference = np.abs(np.concatenate(sampled) - scored.old) if sampled else np.zeros(0)
    known = difference[np.isfinite(difference)]
    return {
        "reward_mean": float(scored.rewards.mean()) if len(scored.rewards) else 0.0,
        "reward_std": float(scored.rewards.std()) if len(scored.rewards) else 0.0,
        "equal_groups": scored.advantages.equal_groups,
        "replies": len(experience.replies),
        "cut_replies": sum(not reply.finished for reply in experience.replies),
        "empty_replies": sum(len(reply.tokens) <= int(reply.finished) for reply in experience.replies),
        "logprob_difference_mean": float(known.mean()) if len(known) else None,
        "logprob_difference_max": float(known.max()) if len(known) else None,
    }


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference else 1.0


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 3) for value in values]
