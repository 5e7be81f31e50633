"""Log-probabilities of all reply tokens, under the policy before its update and under the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.vlm import BalancedVLM
from trimtab.training.grpo.experience import Experience, token_starts
from trimtab.training.grpo.job import GRPOJob


def old_and_reference(
    job: GRPOJob, experience: Experience, packs: Sequence[PackedBatch]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """float64 [T] each, equal on every rank; a collective of all ranks. No reference without KL."""
    old = reply_logprobs(job, job.model, experience, packs)
    if job.settings.objective.kl_coefficient == 0:
        return old, None
    if job.reference is not None:
        return old, reply_logprobs(job, job.reference, experience, packs)
    with _without_adapters(job.model):
        return old, reply_logprobs(job, job.model, experience, packs)


@torch.no_grad()
def reply_logprobs(
    job: GRPOJob, model: BalancedVLM, experience: Experience, packs: Sequence[PackedBatch]
) -> NDArray[np.float64]:
    """float64 [T], of all reply tokens in reply order; each rank fills in those of its packs."""
    starts = torch.from_numpy(token_starts(experience.reply_tokens))
    found = torch.zeros(int(experience.reply_tokens.sum()), dtype=torch.float64)
    training = model.training
    model.eval()
    for pack in packs:
        scores = model(
            pack.to(job.ranks.device), temperature=job.settings.rollout.temperature or 1.0, suppressed=job.suppressed
        )
        found[starts[pack.loss_rows] + pack.loss_places] = -scores.loss.double().cpu()
    model.train(training)
    dist.all_reduce(found, group=job.ranks.control)  # zeros elsewhere: the sum is exact
    return found.numpy()


@contextmanager
def _without_adapters(model: BalancedVLM) -> Iterator[None]:
    adapted: Any = model.model
    with adapted.disable_adapter():
        yield
