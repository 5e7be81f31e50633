"""Predicted loads of an arrangement and the step time they make."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.schema.costs import Costs
from trimtab.schema.plans import Sync, VisionUnits


def language_loads(
    cost_ns: NDArray[np.int64], rank: NDArray[np.int64], micro_batch: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """int64 [M, R], summed cost of whole samples; ``shape`` is (M, R)."""
    loads = np.zeros(shape, dtype=np.int64)
    np.add.at(loads, (micro_batch, rank), cost_ns)
    return loads


def sharded_loads(
    values: NDArray[np.int64],
    rank: NDArray[np.int64],
    micro_batch: NDArray[np.int64],
    degree: NDArray[np.int64],
    shape: tuple[int, int],
) -> NDArray[np.int64]:
    """int64 [M, R], sums of samples' values (int64 [N], of each rank of their nodes); ``shape`` is (M, R)."""
    loads = np.zeros(shape, dtype=np.int64)
    for width in np.unique(degree).tolist():
        rows = np.flatnonzero(degree == width)
        for offset in range(width):
            np.add.at(loads, (micro_batch[rows], rank[rows] + offset), values[rows])
    return loads


def cost_at_degree(costs: Costs, degree: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [N], language time of each sample on each rank of its node.

    Raises:
        InvalidPlanError: costs are not known at a degree.
    """
    if costs.sharded is None or (degree == 1).all():
        if (degree != 1).any():
            raise InvalidPlanError(f"degree {int(degree.max())}: costs are of whole samples only")
        return costs.language_ns
    column = np.searchsorted(costs.sharded.degrees, degree)
    known = np.append(costs.sharded.degrees, 0)[column] == degree
    if not known.all():
        raise InvalidPlanError(f"degree {int(degree[~known][0])}: costs are known at {costs.sharded.degrees} only")
    return costs.sharded.language_ns[np.arange(len(degree)), column]


def shared_bytes(costs: Costs, degree: NDArray[np.int64] | None) -> int:
    """Bytes the ranks of shared samples send each other in a step, samples being at ``degree`` (int64 [N]) or whole."""
    if costs.sharded is None or degree is None:
        return 0
    column = np.searchsorted(costs.sharded.degrees, degree)
    return int(costs.sharded.sent_bytes[np.arange(len(degree)), column].sum())


def vision_loads(frame_ns: NDArray[np.int64], units: VisionUnits, shape: tuple[int, int]) -> NDArray[np.int64]:
    """int64 [M, R], summed cost of the units' frames; ``shape`` is (M, R)."""
    loads = np.zeros(shape, dtype=np.int64)
    np.add.at(loads, (units.micro_batch, units.rank), frame_ns[units.visual] * (units.frame_stop - units.frame_start))
    return loads


def at_speed(loads: NDArray[np.int64], rank_speed: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """Loads [M, R] as time on ranks of the given speeds [R], rounded up."""
    return loads if rank_speed is None else np.ceil(loads / rank_speed).astype(np.int64)


def step_time(
    language_ns: NDArray[np.int64], vision_ns: NDArray[np.int64], sync: Sync, start_ns: NDArray[np.int64] | None = None
) -> int:
    """Sum over meeting points of the slowest rank, nanoseconds.

    Args:
        language_ns: int64 [M, R].
        vision_ns: int64 [M, R].
        sync: "step": ranks meet once; "micro_batch": in each micro-batch; "layer": in each micro-batch in vision
            and in language, as the encoder's layers and the decoder's gather weights from all ranks.
        start_ns: int64 [R], time spent before, for "step" only.
    """
    if sync == "layer":
        return int(vision_ns.max(axis=1).sum() + language_ns.max(axis=1).sum())
    both = language_ns + vision_ns
    if sync == "micro_batch":
        return int(both.max(axis=1).sum())
    total = both.sum(axis=0)
    return int((total if start_ns is None else total + start_ns).max())
