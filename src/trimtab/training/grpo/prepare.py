"""The data phase: a step's prompts, read and shared among ranks, planned, and their media under way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch.distributed as dist

from trimtab.cost.flops import FORWARD
from trimtab.errors import LoaderError, TrimtabError
from trimtab.loader.materializer import PendingMedia
from trimtab.loader.replacements import BadRow, draw_replacements
from trimtab.runtime.agreement import BadSample, agree_on_step
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.skipped import SkippedSample
from trimtab.training.grpo.dispatch import plan_rollout
from trimtab.training.grpo.job import GRPOJob
from trimtab.training.grpo.prompts import Prompt, prompt_batch
from trimtab.training.grpo.rollout import RolloutPlan, RolloutRequest, prompt_sample
from trimtab.training.together import together


@dataclass(frozen=True, eq=False, kw_only=True)
class PendingStep:
    """A step whose media is being decoded while the step before it runs.

    Attributes:
        step: GRPO step.
        prompts: all readable ones, on every rank.
        batch: their metadata.
        plan: of the rollout.
        media: under way.
        bad: prompts that could not be read.
    """

    step: int
    prompts: list[Prompt]
    batch: BatchMetadata
    plan: RolloutPlan
    media: PendingMedia
    bad: list[BadRow]


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedPrompts:
    """A step ready for its rollout.

    Attributes:
        request: for the engine.
        batch: metadata of the prompts.
        dropped: prompts whose media could not be decoded; they are answered on blank pixels, and then left out.
        bad: these and those that could not be read, and the prompts that join the next step in their place.
        decoded: runs of frames decoded here.
        received_bytes: tensor bytes rank 0 shipped here.
    """

    request: RolloutRequest
    batch: BatchMetadata
    dropped: frozenset[int]
    bad: list[SkippedSample]
    decoded: int
    received_bytes: int


def start_step(job: GRPOJob, step: int) -> PendingStep:
    """Read the prompts, plan the rollout, begin to decode; a collective of all ranks.

    Raises:
        TrainingError: a prompt cannot be read and bad samples are not skipped; raised on every rank.
    """
    rows = job.sampler.rows(step).tolist()
    central = job.settings.loader.mode == "central"
    first, stride = (job.ranks.rank, job.ranks.size) if not central else (0, 1)
    mine = rows[first::stride] if job.packer.ranks else []
    read = together(job.ranks.control, f"step {step}, prompts", lambda: [_read(job, row) for row in mine])
    shared: list[list[Prompt | BadRow]] = [[] for _ in range(job.ranks.size)]
    dist.all_gather_object(shared, read, group=job.ranks.control)
    found = [item for items in shared for item in items]
    by_row = {item.row: item for item in found if isinstance(item, Prompt)}
    prompts = [by_row[row] for row in rows if row in by_row]
    batch = prompt_batch(job.reader.table, prompts)
    with job.watch.planning():
        plan = _plan(job, batch)
    media = job.packer.start(plan.plan, plan.batch, np.array([p.row for p in prompts], dtype=np.int64)[plan.prompt])
    bad = [item for item in found if not isinstance(item, Prompt)]
    return PendingStep(step=step, prompts=prompts, batch=batch, plan=plan, media=media, bad=bad)


def finish_step(job: GRPOJob, pending: PendingStep) -> LoadedPrompts:
    """Wait for the media and agree with the other ranks; a collective of all ranks.

    Prompts drawn for bad ones join the next step, which must not have been started.

    Raises:
        LoaderError: media cannot be decoded and bad samples are not skipped; raised on every rank.
        RankDisagreementError: ranks planned differently.
    """
    media = job.packer.media(pending.media)
    plan = pending.plan
    bad: list[BadSample] = [
        (int(plan.prompt[row]), plan.batch.sample_ids[row], reason) for row, reason in media.bad.items()
    ]
    agreement = agree_on_step(
        group=job.ranks.control,
        step=pending.step,
        digest=plan.plan.digest(),
        loss_weight=0.0,
        error=_refused(job, bad),
        bad_samples=bad,
    )
    samples = [prompt_sample(pending.prompts[prompt]) for prompt in plan.prompt.tolist()]
    packs, received = job.packer.packs(pending.media, media, samples)
    undecoded = {prompt: (name, why) for rank in agreement.bad_samples for prompt, name, why in rank}
    bad_rows = [*pending.bad, *((pending.prompts[prompt].row, *undecoded[prompt]) for prompt in sorted(undecoded))]
    table = job.reader.table
    return LoadedPrompts(
        request=RolloutRequest(step=pending.step, prompts=pending.prompts, plan=plan, pack=_only(packs)),
        batch=pending.batch,
        dropped=frozenset(undecoded),
        bad=draw_replacements(
            job.sampler, bad_rows, in_step=pending.step + 1, name_of=lambda row: table.sample(row).sample_id
        ),
        decoded=media.decoded,
        received_bytes=received,
    )


def _read(job: GRPOJob, row: int) -> Prompt | BadRow:
    try:
        return job.prompts.read(row)
    except TrimtabError as error:
        if job.settings.loader.on_bad_sample == "raise":
            raise LoaderError(f"{error} (loader.on_bad_sample=skip goes on without it)") from error
        return row, job.reader.table.sample(row).sample_id, str(error)


def _plan(job: GRPOJob, batch: BatchMetadata) -> RolloutPlan:
    """Prompts at the cost of their expected replies: each reply is decoded token by token at its full length's cost."""
    rollout = job.settings.rollout
    expected = job.lengths.expected(batch.sample_ids)
    costs = job.costs(replace(batch, text_tokens=batch.text_tokens + expected), FORWARD)
    costs = replace(costs, language_ns=costs.language_ns * rollout.replies)
    share = rollout.shared_share if job.settings.balance.mode == "on" and rollout.engine == "transformers" else 0.0
    return plan_rollout(batch, costs, job.ranks.size, job.plan_settings, shared_share=share)


def _refused(job: GRPOJob, bad: list[BadSample]) -> LoaderError | None:
    if not bad or job.settings.loader.on_bad_sample == "skip":
        return None
    return LoaderError(f"sample {bad[0][1]}: {bad[0][2]} (loader.on_bad_sample=skip goes on without it)")


def _only(packs: list[PackedBatch]) -> PackedBatch:
    (pack,) = packs
    return pack
