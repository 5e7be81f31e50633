"""The partition problem every solver takes, and what a solver returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.sequence_groups import GroupFamily
from trimtab.schema.plans import Sync


@dataclass(frozen=True, eq=False, kw_only=True)
class Sharding:
    """What samples may be shared by, and what that costs (N samples, D degrees of the family).

    Attributes:
        family: the nested groups of ranks.
        cost_ns: int64 [N, D], time on each rank of a sample's node.
        sent_bytes: int64 [N, D], bytes the node's ranks send each other.
    """

    family: GroupFamily
    cost_ns: NDArray[np.int64]
    sent_bytes: NDArray[np.int64]

    def column(self, degree: int) -> int:
        """Column of a degree of the family."""
        return self.family.degrees.index(degree)

    def take(self, rows: NDArray[np.int64]) -> Sharding:
        """The same of some samples, in that order."""
        return replace(self, cost_ns=self.cost_ns[rows], sent_bytes=self.sent_bytes[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionProblem:
    """Whole samples over ranks and micro-batches (N samples, R ranks, M micro-batches).

    Attributes:
        cost_ns: int64 [N], not negative.
        tokens: int64 [N], for the caps.
        ranks: R.
        micro_batches: M.
        sync: where ranks meet, which decides what must be equal.
        max_tokens_per_micro_batch, max_tokens_per_rank: hard caps, or None.
        equal_counts: every (rank, micro-batch) holds N / (R * M) samples, give or take one.
        start_ns: int64 [R], time each rank already spent since ranks last met, or None.
        rank_speed: float64 [R], speed relative to the one costs are stated for, or None.
        sharding: degrees samples may have, or None where they stay whole.
        at_first: int64 [N], rank each item lies on already, for strategies that start from there, or None: contiguous
            equal blocks.
    """

    cost_ns: NDArray[np.int64]
    tokens: NDArray[np.int64]
    ranks: int
    micro_batches: int = 1
    sync: Sync = "layer"
    max_tokens_per_micro_batch: int | None = None
    max_tokens_per_rank: int | None = None
    equal_counts: bool = False
    start_ns: NDArray[np.int64] | None = None
    rank_speed: NDArray[np.float64] | None = None
    sharding: Sharding | None = None
    at_first: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.cost_ns)

    def demands(self) -> frozenset[str]:
        """What a solver must honour for its answer to be legal."""
        asked = {
            "micro_batches": self.micro_batches > 1,
            "micro_batch_cap": self.max_tokens_per_micro_batch is not None,
            "rank_cap": self.max_tokens_per_rank is not None,
            "equal_counts": self.equal_counts,
            "start": self.start_ns is not None,
            "rank_speed": self.rank_speed is not None,
        }
        return frozenset(name for name, wanted in asked.items() if wanted)


@dataclass(frozen=True, eq=False, kw_only=True)
class Assignment:
    """Where each sample goes.

    Attributes:
        rank: int64 [N], the first rank of a sample's node.
        micro_batch: int64 [N].
        degree: int64 [N], ranks that share a sample, or None where all are whole.
    """

    rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    degree: NDArray[np.int64] | None = None
