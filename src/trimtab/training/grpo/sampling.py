"""Sampling that does not depend on where, or beside what, a reply is generated.

The Gumbel-max trick: argmax(logits / T + g) with independent standard Gumbel noise g is a draw from
softmax(logits / T) (Maddison et al., arXiv:1411.0030). The noise of a token is a function of
(seed, step, sample, reply, position, token) alone, so ranks, batches and order play no part.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor
from transformers import LogitsProcessor

_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)


def reply_key(seed: int, step: int, sample_id: str, reply: int) -> int:
    """A signed 64-bit key of one reply's noise."""
    digest = blake2b(repr((seed, step, sample_id, reply)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel_noise(keys: Tensor, position: int, tokens: int) -> Tensor:
    """Standard Gumbel noise, equal on every device.

    Args:
        keys: int64 [B], one a reply.
        position: of the token to come, from 0 at the start of the reply.
        tokens: V, size of the vocabulary.

    Returns:
        float64 [B, V].
    """
    at_position = _mixed(keys + _wrapped((position + 1) * _STRIDE))
    counters = torch.arange(1, tokens + 1, device=keys.device) * _STRIDE
    bits = _shifted(_mixed(at_position[:, None] + counters), 11)
    uniform = (bits.double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


class KeyedSampler(LogitsProcessor):
    """Makes greedy decoding draw from the temperature's distribution, and keeps the draws' log-probabilities.

    Attributes:
        logprobs: for each position float64 [B], log-probability of the token drawn.
    """

    def __init__(self, keys: Tensor, *, prompt_tokens: int, temperature: float, suppressed: tuple[int, ...]) -> None:
        """Sample one batch of replies.

        Args:
            keys: int64 [B], see ``reply_key``.
            prompt_tokens: tokens before the replies, padding included.
            temperature: 0 takes the likeliest token.
            suppressed: tokens that are never drawn.
        """
        self._keys = keys
        self._prompt_tokens = prompt_tokens
        self._temperature = temperature
        self._suppressed = list(suppressed)
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] whose argmax is the draw."""
        scaled = scores.double() / (self._temperature or 1.0)
        scaled[:, self._suppressed] = float("-inf")
        noisy = scaled
        if self._temperature > 0:
            noisy = scaled + gumbel_noise(self._keys, input_ids.shape[1] - self._prompt_tokens, scores.shape[1])
        drawn = noisy.argmax(dim=-1, keepdim=True)
        self.logprobs.append(scaled.log_softmax(dim=-1).gather(1, drawn)[:, 0])
        return noisy


def _mixed(value: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al., OOPSLA 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ _shifted(value, 30)) * _MIX_1
    value = (value ^ _shifted(value, 27)) * _MIX_2
    return value ^ _shifted(value, 31)


def _wrapped(value: int) -> int:
    """An integer modulo 2^64, as a signed 64-bit one."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros: torch shifts in the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
