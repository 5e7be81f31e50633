"""The clipped objective with its KL penalty, and the global denominators of its aggregations.

Whatever the plan, a mini-batch's loss is one sum over its tokens with weights that only depend on the mini-batch:
    token-mean           1 / tokens
    seq-mean-token-mean  1 / (sequences * tokens of the sequence)
    seq-mean-token-sum   1 / sequences
where a sequence counts once it has a token. So every micro-batch of every rank adds its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.training.grpo.settings import Aggregation, ObjectiveSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenBatch:
    """What the objective knows of the K reply tokens of a pack.

    Attributes:
        old, reference: float [K], log-probabilities before the update and under the reference model (None: no KL).
        advantages: float [K].
        sequence_tokens: float [K], reply tokens of the sequence each token belongs to.
    """

    old: Tensor
    reference: Tensor | None
    advantages: Tensor
    sequence_tokens: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectiveShare:
    """One pack's share of a mini-batch.

    Attributes:
        loss: scalar with gradient; the shares of all packs of all ranks add up to the mini-batch's loss.
        clipped: tokens whose ratio was clipped.
        kl: sum of the tokens' divergence from the reference.
    """

    loss: Tensor
    clipped: float
    kl: float


def policy_objective(
    logprobs: Tensor, tokens: TokenBatch, settings: ObjectiveSettings, denominator: float
) -> ObjectiveShare:
    """-min(r A, clip(r) A) + beta KL, weighted.

    r = exp(new - old) (PPO, arXiv:1707.06347, equation 7); the divergence is estimated by exp(d) - d - 1 with
    d = reference - new (unbiased and never negative: J. Schulman, "Approximating KL divergence", 2020).

    Args:
        logprobs: float [K], with gradient.
        tokens: of the same tokens.
        settings: clip range, KL weight, aggregation.
        denominator: tokens or sequences of the whole mini-batch, see ``counted``.
    """
    ratio = torch.exp(logprobs - tokens.old)
    limited = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    gain, limited_gain = ratio * tokens.advantages, limited * tokens.advantages
    token_loss = -torch.minimum(gain, limited_gain)
    kl = torch.zeros_like(logprobs)
    if tokens.reference is not None:
        distance = tokens.reference - logprobs
        kl = torch.exp(distance) - distance - 1.0
        token_loss = token_loss + settings.kl_coefficient * kl
    weights = torch.ones_like(token_loss)
    if settings.aggregation == "seq-mean-token-mean":
        weights = 1.0 / tokens.sequence_tokens
    share = (token_loss * weights).sum()
    return ObjectiveShare(
        loss=share / denominator if denominator else share * 0.0,
        clipped=float((limited_gain < gain).sum()),
        kl=float(kl.detach().sum()),
    )


def counted(aggregation: Aggregation, *, tokens: int, sequences: int) -> int:
    """What an aggregation divides by: summed over ranks it is the mini-batch's denominator."""
    return tokens if aggregation == "token-mean" else sequences
