"""Which of a step's candidates becomes its plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.arrangement import Arrangement
from trimtab.planning.loads import sharded_loads, shared_bytes
from trimtab.planning.locality import moved_bytes, sample_bytes
from trimtab.planning.settings import PlanSettings
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def choose(
    batch: BatchMetadata,
    costs: Costs,
    candidates: list[Arrangement],
    settings: PlanSettings,
    current_rank: NDArray[np.int64] | None,
) -> Arrangement:
    """The fastest, of equally fast ones the one that sends fewest bytes; the most even in attention where that counts.

    Args:
        batch: N samples.
        costs: their costs.
        candidates: complete arrangements.
        settings: which of them is wanted.
        current_rank: int64 [N], ranks samples lie on: then, of those about as fast, the one that moves least. Or None.
    """

    def merit(each: Arrangement) -> tuple[int, int, int]:
        return aim(batch, each, settings), each.step_ns, shared_bytes(costs, each.assignment.degree)

    best = min(candidates, key=merit)
    if current_rank is None:
        return best
    sizes = sample_bytes(batch)
    close = [each for each in candidates if each.step_ns <= best.step_ns * (1 + settings.locality_tolerance)]
    return min(close, key=lambda each: (moved_bytes(current_rank, each.assignment.rank, sizes), each.step_ns))


def aim(batch: BatchMetadata, arrangement: Arrangement, settings: PlanSettings) -> int:
    """What the strategy makes least: step time in nanoseconds, or squared tokens of the busiest rank in the step."""
    if not evens_attention(settings):
        return arrangement.step_ns
    assignment = arrangement.assignment
    degree = np.ones(len(batch), dtype=np.int64) if assignment.degree is None else assignment.degree
    squares, one = -(-np.square(batch.tokens) // degree), np.zeros(len(batch), dtype=np.int64)
    shape = (1, arrangement.language_ns.shape[1])
    return int(sharded_loads(squares, assignment.rank, one, degree, shape).max())


def evens_attention(settings: PlanSettings) -> bool:
    """Whether attention is made even, whatever the time."""
    return settings.strategy == "adaptive" and settings.objective == "attention"
