"""Lengths of the replies a policy generates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.metadata import BatchMetadata
from trimtab.simulate.scenario import RolloutSettings


def reply_lengths(rollout: RolloutSettings, prompts: int, seed: int, step: int) -> NDArray[np.int64]:
    """int64 [prompts, replies], log-normal with the wanted mean, cut at the cap.

    Args:
        rollout: mean, spread and cap.
        prompts: P.
        seed: with the step it decides what is drawn, whatever the strategy.
        step: counted from 0.
    """
    rng = np.random.default_rng([seed, 2, step])
    centre = np.log(rollout.mean_tokens) - rollout.spread**2 / 2
    drawn = np.exp(rng.normal(centre, rollout.spread, (prompts, rollout.replies)))
    return np.clip(np.rint(drawn), 1, rollout.max_tokens).astype(np.int64)


def with_replies(prompts: BatchMetadata, lengths: NDArray[np.int64]) -> BatchMetadata:
    """The sequences to learn from: each prompt once for every reply, the reply's tokens added; visuals keep their key.

    Args:
        prompts: P samples.
        lengths: int64 [P, n].

    Returns:
        P * n samples, the replies of a prompt next to each other.
    """
    rows = np.repeat(np.arange(len(prompts), dtype=np.int64), lengths.shape[1])
    batch, reply = prompts.take(rows), lengths.reshape(-1)
    return replace(batch, text_tokens=batch.text_tokens + reply, loss_tokens=reply)
