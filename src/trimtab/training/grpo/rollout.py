"""What a rollout is asked for and gives back, and what an engine must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.loader.collate import PackableSample
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.training.grpo.prompts import Prompt


@dataclass(frozen=True, eq=False, kw_only=True)
class Reply:
    """One reply (t tokens).

    Attributes:
        tokens: int64 [t], its end-of-turn token included where it has one.
        logprobs: float64 [t], as sampled; NaN where the engine does not tell.
        finished: it ended by itself; false where the limit cut it.
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    finished: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class RolloutPlan:
    """Where prompts are answered (P prompts; copies of shared ones follow them in ``batch``).

    Attributes:
        plan: of ``batch``; says where visuals are encoded and which ranks are sent them.
        batch: the prompts, then a copy of each shared prompt for every other rank.
        prompt: int64 [N], the prompt each row of ``batch`` stands for.
        own: for each rank, its prompts, costliest first.
        shared: prompts that wait for whichever rank is idle, costliest first.
    """

    plan: StepPlan
    batch: BatchMetadata
    prompt: NDArray[np.int64]
    own: tuple[tuple[int, ...], ...]
    shared: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class RolloutRequest:
    """One step's rollout on one rank.

    Attributes:
        step: GRPO step.
        prompts: all of the step, on every rank.
        plan: where they are answered.
        pack: this rank's visuals to encode, and the prompts whose embeddings it receives.
    """

    step: int
    prompts: Sequence[Prompt]
    plan: RolloutPlan
    pack: PackedBatch


class RolloutEngine(Protocol):
    """Answers prompts."""

    def generate(self, request: RolloutRequest) -> dict[int, list[Reply]]:
        """Replies to the prompts this rank answered, by prompt; every prompt is answered by one rank.

        A collective of all ranks; what fails on one rank raises on all.

        Raises:
            TrainingError: names the rank and the reason.
        """
        ...


def full_sample(prompt: Prompt, reply: Reply) -> PackableSample:
    """Prompt and reply as one sequence whose loss tokens are the reply's.

    The reply goes on from the prompt's last token, as in the whole text and in generation. That is not one beyond the
    largest position: the frames of a long video reach further than the text behind it.
    """
    tokens = torch.from_numpy(reply.tokens)
    last = prompt.position_ids[:, -1:] if len(prompt) else torch.full((3, 1), -1)
    positions = last + 1 + torch.arange(len(tokens))
    return PackableSample(
        input_ids=torch.cat([prompt.input_ids, tokens]),
        position_ids=torch.cat([prompt.position_ids, positions], dim=1),
        loss_weights=torch.cat([torch.zeros(len(prompt)), torch.ones(len(tokens))]),
    )


def prompt_sample(prompt: Prompt) -> PackableSample:
    """A prompt alone, without loss."""
    no_loss: Tensor = torch.zeros(len(prompt))
    return PackableSample(input_ids=prompt.input_ids, position_ids=prompt.position_ids, loss_weights=no_loss)
