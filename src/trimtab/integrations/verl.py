"""verl: a drop-in for its partition function, with our planner behind it.

verl pins older Transformers than the runtime needs, so only planning is used there; this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[float], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Divide items into partitions of nearly equal sums; verl's signature and promises.

    Args:
        seqlen_list: length or workload of each item, not negative.
        k_partitions: partitions wanted.
        equal_size: every partition gets as many items; their number must then be a multiple of ``k_partitions``.

    Returns:
        Indices of each partition, ascending; no partition is empty, and every item is in one.

    Raises:
        SettingsError: fewer items than partitions, a number that does not divide, or a length that is no number.
    """
    count = len(seqlen_list)
    if not 1 <= k_partitions <= count:
        raise SettingsError(f"{count} items cannot fill {k_partitions} partitions; give at least one item for each")
    if equal_size and count % k_partitions:
        raise SettingsError(f"{count} items do not divide into {k_partitions} equal partitions; set equal_size=False")
    lengths = np.asarray(seqlen_list, dtype=np.float64)
    if not np.isfinite(lengths).all() or (lengths < 0).any():
        item = int(np.argmin(np.isfinite(lengths) & (lengths >= 0)))
        raise SettingsError(f"item {item} has length {lengths[item]}; lengths must be numbers of at least 0")
    costs = _whole(lengths)
    settings = PlanSettings(sync="step", equal_counts=equal_size, balance_vision=False)
    plan = plan_step(_items(costs), Costs(language_ns=costs, vision_frame_ns=costs[:0]), k_partitions, settings)
    partitions = [np.flatnonzero(plan.rank == rank).tolist() for rank in range(k_partitions)]
    return _none_empty(partitions, costs)


def _whole(lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """As whole numbers; small fractions keep six digits, so that they still count."""
    whole = np.rint(lengths)
    if (whole == lengths).all():
        return whole.astype(np.int64)
    return np.rint(lengths * (1e12 / max(float(lengths.sum()), 1.0))).astype(np.int64)


def _items(costs: NDArray[np.int64]) -> BatchMetadata:
    count = len(costs)
    return BatchMetadata(
        sample_ids=tuple(map(str, range(count))),
        text_tokens=np.ones(count, dtype=np.int64),
        loss_tokens=np.ones(count, dtype=np.int64),
        loss_weight=np.ones(count),
        visual_offsets=np.zeros(count + 1, dtype=np.int64),
        grid_thw=np.zeros((0, 3), dtype=np.int64),
        is_video=np.zeros(0, dtype=np.bool_),
        visual_keys=np.zeros(0, dtype=np.int64),
        merge_size=1,
    )


def _none_empty(partitions: list[list[int]], costs: NDArray[np.int64]) -> list[list[int]]:
    """Give each empty partition the cheapest item of a partition that has several; the largest sum does not grow."""
    for empty in [partition for partition in partitions if not partition]:
        giver = max((each for each in partitions if len(each) > 1), key=lambda each: int(costs[each].sum()))
        item = min(giver, key=lambda index: int(costs[index]))
        giver.remove(item)
        empty.append(item)
    return partitions
