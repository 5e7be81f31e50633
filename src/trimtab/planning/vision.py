"""Vision units: which rank encodes which frames.

Attention in the encoder stays within a frame, so a visual may be split between frames and nowhere else. Every
rank keeps its own visuals up to an even share; what is above spills to the ranks with most room.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import VisionUnits


@dataclass(frozen=True, eq=False, kw_only=True)
class Encodings:
    """What has to be encoded: E distinct (key, micro-batch) pairs, ordered by visual row.

    Attributes:
        visual: int64 [E], first visual row of the pair.
        micro_batch: int64 [E].
        owner: int64 [E], rank of that visual's sample.
        frames: int64 [E].
        frame_ns: int64 [E], cost of one frame.
    """

    visual: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    owner: NDArray[np.int64]
    frames: NDArray[np.int64]
    frame_ns: NDArray[np.int64]


def encodings(
    batch: BatchMetadata, frame_ns: NDArray[np.int64], rank: NDArray[np.int64], micro_batch: NDArray[np.int64]
) -> Encodings:
    """Visuals of equal key in one micro-batch are one encoding, shared by their samples.

    Args:
        batch: N samples, V visuals.
        frame_ns: int64 [V].
        rank: int64 [N], of the samples.
        micro_batch: int64 [N], of the samples.
    """
    sample = batch.sample_of_visual
    step = micro_batch[sample]
    order = np.lexsort((step, batch.visual_keys))
    keys, steps = batch.visual_keys[order], step[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (keys[1:] != keys[:-1]) | (steps[1:] != steps[:-1])
    visual = np.sort(order[first])
    return Encodings(
        visual=visual,
        micro_batch=step[visual],
        owner=rank[sample[visual]],
        frames=batch.grid_thw[visual, 0],
        frame_ns=frame_ns[visual],
    )


def units_on(work: Encodings, rank: NDArray[np.int64]) -> VisionUnits:
    """Every visual whole, on the rank given for it (int64 [E])."""
    return VisionUnits(
        visual=work.visual,
        frame_start=np.zeros_like(work.frames),
        frame_stop=work.frames,
        rank=rank,
        micro_batch=work.micro_batch,
    )


def balanced_units(work: Encodings, base_ns: NDArray[np.int64]) -> VisionUnits:
    """Spread frames so that, in each micro-batch, base plus vision time is even over ranks.

    Args:
        work: the encodings.
        base_ns: int64 [M, R], time ranks spend anyway at the same meeting point.

    Returns:
        Units ordered by visual and frame.
    """
    pieces = []
    for index in np.unique(work.micro_batch).tolist():
        rows = np.flatnonzero(work.micro_batch == index)
        placed = _spread(work.frame_ns[rows], work.frames[rows], work.owner[rows], base_ns[index])
        placed[:, 0] = rows[placed[:, 0]]
        pieces.append(placed)
    return _units(work, np.concatenate(pieces) if pieces else np.zeros((0, 3), dtype=np.int64))


def even_level(total: int, base: NDArray[np.int64]) -> int:
    """Level to which ``total`` work fills ranks already at ``base``, as water would, rounded up."""
    ordered = np.sort(base)
    filled = np.arange(1, len(base) + 1) * ordered - np.cumsum(ordered)
    ranks = int(np.searchsorted(filled, total, side="right"))
    return -(-(total + int(ordered[:ranks].sum())) // ranks)


def _spread(
    cost: NDArray[np.int64], frames: NDArray[np.int64], owner: NDArray[np.int64], base: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pieces (visual, rank, frames) of one micro-batch, int64 [P, 3]; a visual may appear several times."""
    own = np.zeros_like(base)
    np.add.at(own, owner, cost * frames)
    room = even_level(int(own.sum()), base) - base
    full = own > room
    at_home = np.flatnonzero(~full[owner])
    kept = np.stack([at_home, owner[at_home], frames[at_home]], axis=1)
    left = np.where(full, room, room - own).tolist()
    crowded = np.flatnonzero(full[owner])
    crowded = crowded[np.argsort(-cost[crowded], kind="stable")]
    pieces, spilled = _keep_what_fits(crowded.tolist(), cost.tolist(), frames.tolist(), owner.tolist(), left)
    pieces += _fill_room(spilled, left)
    return np.concatenate([kept, np.array(pieces, dtype=np.int64).reshape(-1, 3)])


def _keep_what_fits(
    visuals: list[int], cost: list[int], frames: list[int], owner: list[int], room: list[int]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Keep frames on their ranks while there is room, costliest first, since small ones fill holes elsewhere better.

    Returns:
        Pieces kept, and (visual, frames, cost of one) spilled. ``room`` is used up.
    """
    kept, spilled = [], []
    for visual in visuals:
        rank, count = owner[visual], frames[visual]
        stay = min(count, max(0, room[rank]) // cost[visual]) if cost[visual] else count
        if stay:
            room[rank] -= stay * cost[visual]
            kept.append((visual, rank, stay))
        if stay < count:
            spilled.append((visual, count - stay, cost[visual]))
    return kept, spilled


def _fill_room(spilled: list[tuple[int, int, int]], room: list[int]) -> list[tuple[int, int, int]]:
    """Give spilled frames, costliest first, to the rank with most room, as many at once as fit."""
    heap = [(-left, rank) for rank, left in enumerate(room)]
    heapq.heapify(heap)
    pieces = []
    for visual, count, cost in spilled:
        while count:
            left, rank = heap[0]
            taken = min(count, max(1, -left // cost))
            heapq.heapreplace(heap, (left + taken * cost, rank))
            pieces.append((visual, rank, taken))
            count -= taken
    return pieces


def _units(work: Encodings, pieces: NDArray[np.int64]) -> VisionUnits:
    """Cut each visual into runs of frames, one a rank, its owner's first, from pieces (row, rank, frames)."""
    row, rank, count = pieces.T
    order = np.lexsort((rank, rank != work.owner[row], row))
    row, rank, count = row[order], rank[order], count[order]
    new = np.ones(len(row), dtype=np.bool_)
    new[1:] = (row[1:] != row[:-1]) | (rank[1:] != rank[:-1])
    starts = np.flatnonzero(new)
    row, rank = row[starts], rank[starts]
    count = np.add.reduceat(count, starts) if len(starts) else count
    ends = np.cumsum(count)
    first = np.ones(len(row), dtype=np.bool_)
    first[1:] = row[1:] != row[:-1]
    before = np.maximum.accumulate(np.where(first, ends - count, 0)) if len(row) else ends
    return VisionUnits(
        visual=work.visual[row],
        frame_start=ends - count - before,
        frame_stop=ends - before,
        rank=rank,
        micro_batch=work.micro_batch[row],
    )
