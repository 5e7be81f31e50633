"""One step's replies with what is known of them: the data that passes from phase to phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.loader.collate import PackableSample
from trimtab.schema.metadata import BatchMetadata
from trimtab.training.grpo.advantages import Advantages
from trimtab.training.grpo.prompts import Prompt, reply_batch
from trimtab.training.grpo.rollout import Reply, full_sample


@dataclass(frozen=True, eq=False, kw_only=True)
class Experience:
    """P prompts with n replies each; replies are in prompt order (N = P * n), on every rank alike.

    Attributes:
        prompts: P.
        replies: N.
        batch: metadata of the N sequences.
        rows: int64 [N], rows of the table.
    """

    prompts: Sequence[Prompt]
    replies: Sequence[Reply]
    batch: BatchMetadata
    rows: NDArray[np.int64]

    @staticmethod
    def of(prompts: Sequence[Prompt], batch: BatchMetadata, replies: Sequence[Sequence[Reply]]) -> Experience:
        """Put prompts (with their metadata) and their replies together."""
        each = len(replies[0]) if replies else 1
        tokens = np.array([[len(r.tokens) for r in group] for group in replies], dtype=np.int64).reshape(-1, each)
        return Experience(
            prompts=prompts,
            replies=[reply for group in replies for reply in group],
            batch=reply_batch(batch, tokens),
            rows=np.repeat(np.array([prompt.row for prompt in prompts], dtype=np.int64), each),
        )

    @property
    def replies_each(self) -> int:
        """N."""
        return len(self.replies) // max(1, len(self.prompts))

    @property
    def reply_tokens(self) -> NDArray[np.int64]:
        """int64 [N]."""
        return self.batch.loss_tokens

    def samples(self) -> list[PackableSample]:
        """The N sequences."""
        each = self.replies_each
        return [full_sample(self.prompts[i // each], reply) for i, reply in enumerate(self.replies)]

    def mini_batches(self, count: int) -> NDArray[np.int64]:
        """int64 [N], mini-batch of each reply: whole groups, consecutive ones, as many to each, give or take one."""
        groups = np.arange(len(self.prompts), dtype=np.int64) * count // max(1, len(self.prompts))
        return np.repeat(groups, self.replies_each)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """What the update needs beside the sequences.

    Attributes:
        rewards: float64 [N].
        advantages: of the replies.
        old, reference: float64 [T], log-probabilities of all reply tokens in reply order; ``reference`` is None
            without KL.
    """

    rewards: NDArray[np.float64]
    advantages: Advantages
    old: NDArray[np.float64]
    reference: NDArray[np.float64] | None


def token_starts(reply_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [N], where each reply's tokens start among those of all replies."""
    return np.asarray(np.cumsum(reply_tokens) - reply_tokens)
