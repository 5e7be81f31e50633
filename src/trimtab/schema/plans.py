"""Plans: what runs where. Pure data, equal on every rank."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Sync = Literal["step", "micro_batch", "layer"]


@dataclass(frozen=True, eq=False, kw_only=True)
class VisionUnits:
    """Which rank encodes which frames: U units, each a run of temporal patches of one visual.

    Attributes:
        visual: int64 [U], row of the visual in the batch.
        frame_start, frame_stop: int64 [U], its temporal patches ``frame_start:frame_stop``.
        rank: int64 [U], the rank that encodes it.
        micro_batch: int64 [U], the micro-batch it is encoded in.
    """

    visual: NDArray[np.int64]
    frame_start: NDArray[np.int64]
    frame_stop: NDArray[np.int64]
    rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.visual)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepPlan:
    """Where every sample and vision unit of one optimizer step runs (N samples, R ranks, M micro-batches).

    Attributes:
        ranks: R.
        micro_batches: M, the same on every rank; a rank may have empty ones.
        rank: int64 [N], first rank of the sample's node of ``degree`` ranks.
        degree: int64 [N], sequence-parallel degree (1: whole sample on one rank).
        micro_batch: int64 [N].
        units: the vision units.
        language_ns, vision_ns: int64 [M, R], predicted load.
        step_ns: predicted step time: sum over meeting points of the slowest rank, and ``exchange_ns``.
        current_step_ns: the same for the arrangement the samples came in.
        lower_bound_ns: no plan of this kind can be faster.
        sync: where ranks meet.
        denominators: predicted global denominators: "tokens" in the loss, "sequences" with any.
        strategy: name of the strategy that made it.
        exchange_ns: time to send embeddings between ranks, where ``Costs.exchange`` says what that takes.
        unsharded_ns: what its work would take on one rank with every sample whole, or None for a plan of whole samples,
            whose loads add up to that.
        shared_bytes: bytes the ranks of shared samples send each other.
    """

    ranks: int
    micro_batches: int
    rank: NDArray[np.int64]
    degree: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    units: VisionUnits
    language_ns: NDArray[np.int64]
    vision_ns: NDArray[np.int64]
    step_ns: int
    current_step_ns: int
    lower_bound_ns: int
    sync: Sync
    denominators: dict[str, int]
    strategy: str = "whole-sample"
    exchange_ns: int = 0
    unsharded_ns: int | None = None
    shared_bytes: int = 0

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def work_ns(self) -> int:
        """Time of the step's work on one rank, every sample whole: what ``step_ratio`` compares with."""
        return int(self.language_ns.sum() + self.vision_ns.sum()) if self.unsharded_ns is None else self.unsharded_ns

    def rows(self, rank: int, micro_batch: int) -> NDArray[np.int64]:
        """Rows of the samples that start on ``rank`` in ``micro_batch``, in batch order."""
        return np.flatnonzero((self.rank == rank) & (self.micro_batch == micro_batch))

    def unit_rows(self, rank: int, micro_batch: int) -> NDArray[np.int64]:
        """Rows of the vision units ``rank`` encodes in ``micro_batch``, ordered by visual and frame."""
        return np.flatnonzero((self.units.rank == rank) & (self.units.micro_batch == micro_batch))

    def digest(self) -> str:
        """Sixteen hex digits over everything that decides what moves; ranks compare it before moving data."""
        return digest_of(self)


def digest_of(plan: object) -> str:
    """Sixteen hex digits over a frozen dataclass of arrays, numbers, strings and nested dataclasses."""
    state = hashlib.blake2b(digest_size=8)
    _feed(state, plan)
    return state.hexdigest()


def _feed(state: hashlib.blake2b, value: object) -> None:
    if hasattr(value, "__dataclass_fields__"):
        for field in fields(value):  # type: ignore[arg-type]
            state.update(field.name.encode())
            _feed(state, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype.str}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    else:
        state.update(repr(value).encode())
