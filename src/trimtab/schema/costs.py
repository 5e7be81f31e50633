"""What the samples and visuals of a step cost, in whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedCosts:
    """What each sample costs at each sequence-parallel degree (N samples, D degrees).

    Attributes:
        degrees: ascending from 1.
        language_ns: int64 [N, D], time on each rank of the sample's node, communication that nothing hides included;
            the first column is that of the whole sample.
        sent_bytes: int64 [N, D], bytes the node's ranks send each other, all together; zeros at degree 1.
    """

    degrees: tuple[int, ...]
    language_ns: NDArray[np.int64]
    sent_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingExchange:
    """What sending embeddings to other ranks takes, once forth in the forward and once back in the backward.

    Attributes:
        token_bytes: size of one token's embedding, deepstack features included.
        latency_ns: of an exchange of nothing.
        gigabyte_ns: what each 1e9 bytes that the fullest rank sends to others take beyond that.
    """

    token_bytes: int
    latency_ns: int
    gigabyte_ns: int

    def step_ns(self, sent: NDArray[np.int64]) -> int:
        """Time of a step in which ranks send ``sent`` (int64 [M, R]) bytes to others in each micro-batch's forward."""
        fullest: list[int] = sent.max(axis=1, initial=0).tolist()  # Python's numbers: products may pass 64 bits
        return 2 * sum(self.latency_ns + most * self.gigabyte_ns // 10**9 for most in fullest if most)


@dataclass(frozen=True, eq=False, kw_only=True)
class Costs:
    """Predicted time of each sample and visual on one rank (N samples, V visuals).

    Integers, so that every rank computes the same plan to the last bit.

    Attributes:
        language_ns: int64 [N], language model on the whole sequence, forward and backward.
        vision_frame_ns: int64 [V], vision encoder on one temporal patch of the visual; a visual costs
            ``grid_t * vision_frame_ns`` since attention stays within a frame.
        sharded: language costs of samples that several ranks share, or None where samples stay whole.
        legal_degrees: degrees the model's heads allow, whatever the ranks; None where the model is not known.
        exchange: what sending embeddings between ranks takes; None where it is not known, and then costs nothing.
    """

    language_ns: NDArray[np.int64]
    vision_frame_ns: NDArray[np.int64]
    sharded: ShardedCosts | None = None
    legal_degrees: tuple[int, ...] | None = None
    exchange: EmbeddingExchange | None = None

    def take(self, samples: NDArray[np.int64], visuals: NDArray[np.int64]) -> Costs:
        """Costs of the given rows of samples and visuals."""
        sharded = self.sharded
        if sharded is not None:
            sharded = ShardedCosts(
                degrees=sharded.degrees,
                language_ns=sharded.language_ns[samples],
                sent_bytes=sharded.sent_bytes[samples],
            )
        return Costs(
            language_ns=self.language_ns[samples],
            vision_frame_ns=self.vision_frame_ns[visuals],
            sharded=sharded,
            legal_degrees=self.legal_degrees,
            exchange=self.exchange,
        )
