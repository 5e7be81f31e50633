"""The update phase: PPO epochs over mini-batches, each an optimizer step with a plan of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.errors import MediaError
from trimtab.planning.ppo_mini_batches import plan_mini_batches
from trimtab.runtime.agreement import agree_on_step
from trimtab.runtime.loss import gradient_scale
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.training.grpo.experience import Experience, Scored, token_starts
from trimtab.training.grpo.job import GRPOJob
from trimtab.training.grpo.objective import TokenBatch, counted, policy_objective
from trimtab.training.optimizer import learning_rate, take_step
from trimtab.training.together import together


@dataclass(frozen=True, eq=False, kw_only=True)
class MiniBatch:
    """One optimizer step's part of the experience.

    Attributes:
        rows: int64, its replies.
        batch: their metadata.
        plan: of them.
        packs: this rank's packs.
    """

    rows: NDArray[np.int64]
    batch: BatchMetadata
    plan: StepPlan
    packs: Sequence[PackedBatch]


@dataclass(frozen=True, kw_only=True)
class UpdateFigures:
    """Of one step's update; sums over this rank's tokens, to be summed over ranks and divided by ``tokens``.

    Attributes:
        loss: this rank's share, mean over optimizer steps.
        clipped, kl, tokens: sums over optimizer steps.
        grad_norm: of the last optimizer step taken, None where it was skipped.
        learning_rate: of the last optimizer step.
    """

    loss: float
    clipped: float
    kl: float
    tokens: int
    grad_norm: float | None
    learning_rate: float


def load_mini_batches(job: GRPOJob, experience: Experience) -> tuple[list[MiniBatch], int, int]:
    """Plan and pack every mini-batch; returns also runs of frames decoded and bytes received here.

    A collective of all ranks.

    Raises:
        TrimtabError: media that decoded in the rollout no longer does; raised on every rank.
    """
    count = min(job.settings.objective.mini_batches, len(experience.prompts))
    costs, mini_batch = job.costs(experience.batch), experience.mini_batches(count)
    with job.watch.planning():
        plans = plan_mini_batches(experience.batch, costs, job.ranks.size, job.plan_settings, mini_batch)
    samples = experience.samples()
    pending = [
        (rows, job.packer.start(plan, experience.batch.take(rows), experience.rows[rows])) for rows, plan in plans
    ]
    loaded, decoded, received = [], 0, 0
    for rows, waiting in pending:
        media = job.packer.media(waiting)
        check_media(job, media.bad, waiting.batch)
        packs, received_now = job.packer.packs(waiting, media, [samples[row] for row in rows.tolist()])
        loaded.append(MiniBatch(rows=rows, batch=waiting.batch, plan=waiting.plan, packs=packs))
        decoded, received = decoded + media.decoded, received + received_now
    return loaded, decoded, received


def check_media(job: GRPOJob, bad: Mapping[int, str], batch: BatchMetadata) -> None:
    """Raise on every rank where media that decoded in the rollout no longer does; a collective.

    Raises:
        TrainingError: names the sample.
    """

    def check() -> None:
        for row, reason in bad.items():
            raise MediaError(f"sample {batch.sample_ids[row]}: {reason}")

    together(job.ranks.control, "loading replies", check)


def update(
    job: GRPOJob, step: int, experience: Experience, scored: Scored, loaded: Sequence[MiniBatch]
) -> UpdateFigures:
    """All epochs over all mini-batches; a collective of all ranks."""
    settings = job.settings
    sums, rate, grad_norm = np.zeros(4), 0.0, None
    for epoch in range(settings.objective.epochs):
        for index, mini_batch in enumerate(loaded):
            sums += _backward(job, step, experience, scored, mini_batch)
            done = step * settings.optimizer_steps + epoch * len(loaded) + index
            rate = learning_rate(done, settings.steps * settings.optimizer_steps, settings.optimizer)
            grad_norm = take_step(job.optimizer, rate, settings.optimizer.max_grad_norm)
    steps = max(1, settings.objective.epochs * len(loaded))
    return UpdateFigures(
        loss=float(sums[0]) / steps,
        clipped=float(sums[1]),
        kl=float(sums[2]),
        tokens=int(sums[3]),
        grad_norm=grad_norm,
        learning_rate=rate,
    )


def _backward(
    job: GRPOJob, step: int, experience: Experience, scored: Scored, mini_batch: MiniBatch
) -> NDArray[np.float64]:
    """Gradients of one mini-batch; returns this rank's sums of loss, clipped tokens, divergence and tokens."""
    objective, ranks = job.settings.objective, job.ranks
    tokens = sum(len(pack.targets) for pack in mini_batch.packs)
    sequences = sum(int((pack.loss_places == 0).sum()) for pack in mini_batch.packs)  # once each, shared or not
    agreement = agree_on_step(
        group=ranks.control,
        step=step,
        digest=mini_batch.plan.digest(),
        loss_weight=counted(objective.aggregation, tokens=tokens, sequences=sequences),
        error=None,
        bad_samples=[],
    )
    sums = np.zeros(4)
    for pack in mini_batch.packs:
        scores = job.model(
            pack.to(ranks.device), temperature=job.settings.rollout.temperature or 1.0, suppressed=job.suppressed
        )
        known = _tokens_of(experience, scored, mini_batch, pack, scores.loss)
        share = policy_objective(-scores.loss, known, objective, agreement.loss_weight)
        (share.loss * gradient_scale(ranks.size)).backward()
        sums += [float(share.loss.detach()), share.clipped, share.kl, len(pack.targets)]
    return sums


def _tokens_of(
    experience: Experience, scored: Scored, mini_batch: MiniBatch, pack: PackedBatch, like: torch.Tensor
) -> TokenBatch:
    rows = torch.from_numpy(mini_batch.rows)[pack.loss_rows]
    places = torch.from_numpy(token_starts(experience.reply_tokens))[rows] + pack.loss_places

    def moved(values: NDArray[Any], index: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(values)[index].to(like.device, like.dtype)

    return TokenBatch(
        old=moved(scored.old, places),
        reference=None if scored.reference is None else moved(scored.reference, places),
        advantages=moved(scored.advantages.values, rows),
        sequence_tokens=moved(experience.reply_tokens, rows),
    )
