"""One GRPO step, read top to bottom: rollout, rewards, advantages, inference, update; each phase has its own plan.

The data phase is ``prepare.py``, the run around the steps ``run.py``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.cost.flops import FORWARD
from trimtab.errors import TrainingError
from trimtab.planning.step import plan_step
from trimtab.runtime.agreement import agree_on_step
from trimtab.runtime.peak_memory import take_peak_memory_bytes
from trimtab.schema.skipped import SkippedSample
from trimtab.training.grpo.advantages import group_advantages
from trimtab.training.grpo.experience import Experience, Scored
from trimtab.training.grpo.inference import old_and_reference
from trimtab.training.grpo.job import GRPOJob
from trimtab.training.grpo.prepare import LoadedPrompts
from trimtab.training.grpo.report import GRPOReport, RankStep, gather_report
from trimtab.training.grpo.reward_call import RewardInput
from trimtab.training.grpo.rollout import Reply
from trimtab.training.grpo.update import check_media, load_mini_batches, update
from trimtab.training.stop_signal import StopSignal
from trimtab.training.together import together


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a step leaves.

    Attributes:
        report: its record.
        bad: samples that could not be used.
        stop: whether any rank was asked to stop.
        experience: the prompts and replies.
        rewards: float64 [N], of the replies.
    """

    report: GRPOReport
    bad: list[SkippedSample]
    stop: bool
    experience: Experience
    rewards: NDArray[np.float64]


def grpo_step(job: GRPOJob, loaded: LoadedPrompts, began: float, stop: StopSignal) -> StepOutcome:
    """One step: every phase with a plan of its own."""
    step, watch = loaded.request.step, job.watch
    with watch.phase("rollout"):
        replies = roll_out(job, loaded)
    kept = [index for index in range(len(loaded.request.prompts)) if index not in loaded.dropped]
    experience = Experience.of(
        [loaded.request.prompts[index] for index in kept], loaded.batch.take(kept), [replies[index] for index in kept]
    )
    with watch.phase("reward"):
        rewards = score(job, step, experience)
        advantages = group_advantages(
            rewards, job.settings.rollout.replies, scale=job.settings.objective.scale_advantages
        )
    with watch.phase("inference"):
        old, reference, decoded, received = infer(job, step, experience)
    scored = Scored(rewards=rewards, advantages=advantages, old=old, reference=reference)
    with watch.phase("update"):
        with watch.phase("data"):
            mini_batches, decoded_now, received_now = load_mini_batches(job, experience)
        figures = update(job, step, experience, scored, mini_batches)
    wall, busy = watch.finish()
    own = RankStep(
        wall_ms=wall,
        busy_ms=busy,
        step_ms=(time.perf_counter() - began) * 1e3,
        decoded=loaded.decoded + decoded + decoded_now,
        moved_bytes=loaded.received_bytes + received + received_now,
        peak_memory_bytes=take_peak_memory_bytes(job.ranks.device),
        update=figures,
        stop=stop.wanted,
    )
    report, stopped = gather_report(
        step,
        experience,
        scored,
        mini_batches,
        loaded.request.plan,
        own,
        bad=[one.sample_id for one in loaded.bad],
        planning_ms=watch.planned_ms(),
        group=job.ranks.control,
    )
    return StepOutcome(report=report, bad=loaded.bad, stop=stopped, experience=experience, rewards=rewards)


def roll_out(job: GRPOJob, loaded: LoadedPrompts) -> list[list[Reply]]:
    """Replies to every prompt of the step, on every rank."""
    answered = job.engine.generate(loaded.request)
    everywhere: list[dict[int, list[Reply]]] = [{} for _ in range(job.ranks.size)]
    dist.all_gather_object(everywhere, answered, group=job.ranks.control)
    found = {prompt: replies for part in everywhere for prompt, replies in part.items()}
    count = len(loaded.request.prompts)
    if sorted(found) != list(range(count)) or sum(len(part) for part in everywhere) != count:
        raise TrainingError(f"step {loaded.request.step}: {count} prompts, answered {sorted(found)}; a defect")
    replies = [found[prompt] for prompt in range(count)]
    tokens = np.array([[len(reply.tokens) for reply in group] for group in replies], dtype=np.int64)
    job.lengths.learn(loaded.batch.sample_ids, tokens)
    return replies


def score(job: GRPOJob, step: int, experience: Experience) -> NDArray[np.float64]:
    """float64 [N], rewards of all replies, from rank 0 to every rank."""

    def scored() -> NDArray[np.float64]:
        if job.rewarder is None:
            return np.zeros(0)
        each = experience.replies_each
        return job.rewarder.score(
            [
                RewardInput(
                    sample_id=prompt.sample_id,
                    prompt=prompt.text,
                    reply=job.tokenizer.decode(reply.tokens, skip_special_tokens=True),
                    answer=prompt.answer,
                    finished=reply.finished,
                    extras=prompt.extras,
                )
                for index, reply in enumerate(experience.replies)
                for prompt in [experience.prompts[index // each]]
            ]
        )

    rewards = [together(job.ranks.control, f"step {step}, rewards", scored)]
    dist.broadcast_object_list(rewards, group=job.ranks.control, group_src=0)
    return rewards[0]


def infer(
    job: GRPOJob, step: int, experience: Experience
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, int, int]:
    """Log-probabilities before the update and under the reference, runs of frames decoded, bytes received."""
    with job.watch.phase("data"):
        with job.watch.planning():
            plan = plan_step(experience.batch, job.costs(experience.batch, FORWARD), job.ranks.size, job.plan_settings)
        pending = job.packer.start(plan, experience.batch, experience.rows)
        media = job.packer.media(pending)
        check_media(job, media.bad, experience.batch)
        agree_on_step(
            group=job.ranks.control, step=step, digest=plan.digest(), loss_weight=0.0, error=None, bad_samples=[]
        )
        packs, received = job.packer.packs(pending, media, experience.samples())
    old, reference = old_and_reference(job, experience, packs)
    return old, reference, media.decoded, received
