"""What overflows: devices in training and rollout, hosts in loading."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import Architecture
from trimtab.cost.memory import language_bytes_per_token, vision_bytes_per_patch
from trimtab.planning.loads import sharded_loads
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """Memory that does not suffice.

    Attributes:
        where: "device" or "host".
        index: the device or host that needs most.
        phase: when.
        needed_gb, limit_gb: what it needs and what it has.
        count: devices or hosts that overflow.
        longest: the longest sample of that device, or None where samples are not what it holds.
        longest_tokens: its tokens, or 0.
    """

    where: Literal["device", "host"]
    index: int
    phase: str
    needed_gb: float
    limit_gb: float
    count: int
    longest: str | None = None
    longest_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; its keys are the attributes."""
        return asdict(self)

    def __str__(self) -> str:
        such = f" ({self.count} such)" if self.count > 1 else ""
        longest = "" if self.longest is None else f"; longest: sample {self.longest!r}, {self.longest_tokens:,} tokens"
        return f"{self.sizes}{such}{longest}"

    @property
    def sizes(self) -> str:
        """What needs how much, and has."""
        return f"{self.where} {self.index} in {self.phase}: {self.needed_gb:.0f} GB of {self.limit_gb:.0f} GB"


def overflow(
    where: Literal["device", "host"], phase: str, needed: NDArray[np.float64], limit: float
) -> Overflow | None:
    """The overflow of bytes ``needed`` (float64 [devices or hosts]) over a limit, or None."""
    if not (needed > limit).any():
        return None
    index = int(needed.argmax())
    return Overflow(
        where=where,
        index=index,
        phase=phase,
        needed_gb=round(float(needed[index]) / 1e9, 1),
        limit_gb=round(limit / 1e9, 1),
        count=int((needed > limit).sum()),
    )


def with_longest(found: Overflow | None, plan: StepPlan, batch: BatchMetadata) -> Overflow | None:
    """An overflow in a plan's ranks with the longest sample there."""
    if found is None:
        return None
    rows = np.flatnonzero((plan.rank <= found.index) & (found.index < plan.rank + plan.degree))
    if not len(rows):
        return found
    row = int(rows[batch.tokens[rows].argmax()])
    return replace(found, longest=batch.sample_ids[row], longest_tokens=int(batch.tokens[row]))


def worst(found: list[Overflow]) -> list[Overflow]:
    """The largest overflow of each place and phase over several steps."""
    largest: dict[tuple[str, str], Overflow] = {}
    for each in found:
        key = (each.where, each.phase)
        if key not in largest or each.needed_gb > largest[key].needed_gb:
            largest[key] = each
    return list(largest.values())


def activation_bytes(
    plan: StepPlan, batch: BatchMetadata, architecture: Architecture, *, recompute: bool, train: bool
) -> NDArray[np.float64]:
    """float64 [R], most bytes of activations of a rank in any micro-batch.

    Args:
        plan: where everything runs.
        batch: its samples.
        architecture: the model.
        recompute: whole layers are recomputed.
        train: a backward follows; otherwise one layer's activations are kept at a time.
    """
    shape = (plan.micro_batches, plan.ranks)
    held = -(-batch.tokens // plan.degree)
    tokens = sharded_loads(held, plan.rank, plan.micro_batch, plan.degree, shape)
    per_token: float = language_bytes_per_token(architecture.language, recompute=recompute)
    if not train:
        per_token = language_bytes_per_token(architecture.language, recompute=False) / architecture.language.layers
    needed = tokens * per_token
    if architecture.vision is not None and len(plan.units):
        units, vision = plan.units, architecture.vision
        frame = batch.grid_thw[units.visual, 1] * batch.grid_thw[units.visual, 2]
        patches = np.zeros(shape, dtype=np.int64)
        np.add.at(patches, (units.micro_batch, units.rank), frame * (units.frame_stop - units.frame_start))
        per_patch: float = vision_bytes_per_patch(vision, recompute=recompute)
        if not train:
            per_patch = vision_bytes_per_patch(vision, recompute=False) / vision.depth
        needed = needed + patches * per_patch
    return np.asarray(needed.max(axis=0), dtype=np.float64)
