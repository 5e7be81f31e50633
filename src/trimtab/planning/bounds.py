"""Lower bounds: what no plan can beat that keeps samples whole, or that shards them at legal degrees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.plans import Sync


def mean_bound(total: int, ranks: int, start: NDArray[np.int64] | None, speed: NDArray[np.float64] | None) -> int:
    """Time of the slowest rank if work could be split at will, nanoseconds.

    Args:
        total: work of all items.
        ranks: R.
        start: int64 [R], time before the first item, or None.
        speed: float64 [R], relative speeds, or None where all are 1.
    """
    latest = 0 if start is None else int(start.max(initial=0))
    if speed is None:
        before = 0 if start is None else int(start.sum())
        return max(latest, -(-(total + before) // ranks))
    done = 0.0 if start is None else float((start * speed).sum())
    return max(latest, int((total + done) / float(speed.sum())))


def largest_bound(cost: NDArray[np.int64], start: NDArray[np.int64] | None, speed: NDArray[np.float64] | None) -> int:
    """Time of the largest item on the rank that could finish it first, nanoseconds."""
    largest = int(cost.max(initial=0))
    if start is None and speed is None:
        return largest
    before = 0 if start is None else start
    return int(np.min(before + (largest if speed is None else largest / speed)))


def pigeonhole_bound(cost: NDArray[np.int64], bins: int) -> int:
    """Most that some bin must hold because items outnumber bins, nanoseconds.

    For each k, of the k * bins + 1 largest items some k + 1 share a bin, which then holds at least the k + 1
    smallest of them.
    """
    deepest = (len(cost) - 1) // bins
    if deepest < 1:
        return 0
    ordered = cost if (cost[1:] <= cost[:-1]).all() else np.sort(cost)[::-1]
    sums = np.concatenate([[0], np.cumsum(ordered)])
    k = np.arange(1, deepest + 1)
    return int((sums[k * bins + 1] - sums[k * bins - k]).max())


def bin_bound(
    cost: NDArray[np.int64],
    ranks: int,
    micro_batches: int = 1,
    *,
    start: NDArray[np.int64] | None = None,
    speed: NDArray[np.float64] | None = None,
) -> int:
    """Least possible sum over micro-batches of the slowest rank's time, items being whole.

    Args:
        cost: int64 [N].
        ranks: R.
        micro_batches: M; there are R * M bins.
        start: int64 [R], time before the first item, or None.
        speed: float64 [R], relative speeds, or None where all are 1.

    Returns:
        Nanoseconds.
    """
    bound = max(mean_bound(int(cost.sum()), ranks, start, speed), largest_bound(cost, start, speed))
    return bound if speed is not None else max(bound, pigeonhole_bound(cost, ranks * micro_batches))


def step_bound(
    language_ns: NDArray[np.int64],
    frame_ns: NDArray[np.int64],
    frames: NDArray[np.int64],
    ranks: int,
    micro_batches: int,
    sync: Sync,
    *,
    start: NDArray[np.int64] | None = None,
    speed: NDArray[np.float64] | None = None,
    sharded: int | None = None,
) -> int:
    """Least predicted step time of any plan that keeps frames whole, and samples too unless they are sharded.

    Args:
        language_ns: int64 [N].
        frame_ns: int64 [V], cost of a frame of each distinct visual.
        frames: int64 [V], their number.
        ranks: R.
        micro_batches: M.
        sync: where ranks meet; with "layer" vision and language are bounded apart and added.
        start: int64 [R], time spent before ("step" only), or None.
        speed: float64 [R], relative speeds, or None.
        sharded: ``sharded_bound`` of the samples where they may be sharded; it takes the place of the language bound.
    """
    every_frame = np.repeat(frame_ns, frames)
    language = bin_bound(language_ns, ranks, micro_batches, start=start, speed=speed) if sharded is None else sharded
    vision = bin_bound(every_frame, ranks, micro_batches, speed=speed)
    if sync == "layer":
        return language + vision
    together = mean_bound(int(language_ns.sum()) + int(every_frame.sum()), ranks, start, speed)
    return max(language, vision, together)


def sharded_bound(cost_ns: NDArray[np.int64], feasible: NDArray[np.bool_], degrees: tuple[int, ...], ranks: int) -> int:
    """Least possible sum over micro-batches of the slowest rank's time, any sample at any degree it fits at.

    The mean over ranks of what samples cost at the degree that costs all ranks together least, and the largest sample
    at the degree that is fastest.

    Args:
        cost_ns: int64 [N, D], time on each rank of a sample's node.
        feasible: bool [N, D]; every sample fits at some degree.
        degrees: the D degrees.
        ranks: R.

    Returns:
        Nanoseconds.
    """
    never = np.iinfo(np.int64).max
    on_all_ranks = np.where(feasible, cost_ns * np.array(degrees, dtype=np.int64), never).min(axis=1)
    fastest = np.where(feasible, cost_ns, never).min(axis=1)
    return max(-(-int(on_all_ranks.sum()) // ranks), int(fastest.max(initial=0)))


def attention_floor(tokens: NDArray[np.int64], ranks: int, max_degree: int) -> float:
    """Least attention ratio of any plan with degrees up to p_max: max(1, R h_max^2 / (p_max sum h^2)).

    Args:
        tokens: int64 [N], h.
        ranks: R.
        max_degree: p_max, the largest degree a sample may have: one the model's heads and the ranks allow.
    """
    squares = np.square(tokens.astype(np.float64))
    total = float(squares.sum())
    return max(1.0, ranks * float(squares.max(initial=0.0)) / (max_degree * total)) if total else 1.0
