"""Which rank encodes which frames of visuals that lie on ranks already, and the routes there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.peers import loongforge_vision
from trimtab.planning.vision import Encodings, balanced_units, units_on
from trimtab.schema.plans import VisionUnits, digest_of
from trimtab.schema.routes import RoutePlan

EncoderStrategy = Literal["frames", "images", "loongforge", "as-is"]


@dataclass(frozen=True, eq=False, kw_only=True)
class EncoderPlan:
    """One call of an encoder over all ranks (V visuals, U units, R ranks).

    Attributes:
        units: runs of frames and their ranks, by visual and frame.
        load_ns, current_ns: int64 [R], encoding time by the plan, and where the visuals lie.
        bound_ns: no plan that cuts between frames has a faster slowest rank.
    """

    units: VisionUnits
    load_ns: NDArray[np.int64]
    current_ns: NDArray[np.int64]
    bound_ns: int

    def digest(self) -> str:
        """Sixteen hex digits over what moves."""
        return digest_of(self.units)


def plan_encoder(
    grid_thw: NDArray[np.int64],
    is_video: NDArray[np.bool_],
    owner: NDArray[np.int64],
    frame_ns: NDArray[np.int64],
    ranks: int,
    strategy: EncoderStrategy = "frames",
) -> EncoderPlan:
    """Spread encoding over ranks.

    Args:
        grid_thw: int64 [V, 3].
        is_video: bool [V]; only the published strategy asks.
        owner: int64 [V], rank each visual lies on.
        frame_ns: int64 [V], cost of one frame.
        ranks: R.
        strategy: "frames" cuts visuals between frames; "images" moves them whole, by the same cost; "loongforge" moves
            images whole by (T*H*W)^2; "as-is" moves nothing.
    """
    frames = grid_thw[:, 0]
    work = Encodings(
        visual=np.arange(len(grid_thw), dtype=np.int64),
        micro_batch=np.zeros(len(grid_thw), dtype=np.int64),
        owner=owner,
        frames=frames,
        frame_ns=frame_ns,
    )
    base = np.zeros((1, ranks), dtype=np.int64)
    if strategy == "frames":
        units = balanced_units(work, base)
    elif strategy == "images":
        whole = Encodings(
            visual=work.visual,
            micro_batch=work.micro_batch,
            owner=owner,
            frames=np.ones_like(frames),
            frame_ns=frame_ns * frames,
        )
        units = units_on(work, balanced_units(whole, base).rank)
    elif strategy == "loongforge":
        patches = np.asarray(grid_thw.prod(axis=1), dtype=np.int64)
        units = units_on(work, loongforge_vision.solve(patches, is_video, owner, ranks))
    else:
        units = units_on(work, owner)
    total = int((frame_ns * frames).sum())
    return EncoderPlan(
        units=units,
        load_ns=_loads(units, frame_ns, ranks),
        current_ns=_loads(units_on(work, owner), frame_ns, ranks),
        bound_ns=max(-(-total // ranks), int(frame_ns.max(initial=0))),
    )


def route_pixels(
    units: VisionUnits, grid_thw: NDArray[np.int64], owner: NDArray[np.int64], ranks: int, *, patches_per_row: int = 1
) -> RoutePlan:
    """Route of the visuals' rows from where they lie to where they are encoded; its inverse brings outputs back.

    Args:
        units: of the plan.
        grid_thw: int64 [V, 3]; the visuals of a rank lie in this order in its tensor.
        owner: int64 [V].
        ranks: R.
        patches_per_row: 1 for pixels, merge_size squared for merged outputs.
    """
    frame_rows = grid_thw[:, 1] * grid_thw[:, 2] // patches_per_row
    visual_rows = frame_rows * grid_thw[:, 0]
    source_rows, visual_start = _stack(visual_rows, owner, ranks)
    rows = frame_rows[units.visual] * (units.frame_stop - units.frame_start)
    destination_rows, unit_start = _stack(rows, units.rank, ranks)
    return RoutePlan(
        ranks=ranks,
        rows=rows,
        source_rank=owner[units.visual],
        source_start=visual_start[units.visual] + frame_rows[units.visual] * units.frame_start,
        destination_rank=units.rank,
        destination_start=unit_start,
        source_rows=source_rows,
        destination_rows=destination_rows,
    )


def _loads(units: VisionUnits, frame_ns: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    loads = np.zeros(ranks, dtype=np.int64)
    np.add.at(loads, units.rank, frame_ns[units.visual] * (units.frame_stop - units.frame_start))
    return loads


def _stack(rows: NDArray[np.int64], rank: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Length of each rank's tensor, and where each block lies in it, blocks in order."""
    lengths = np.zeros(ranks, dtype=np.int64)
    np.add.at(lengths, rank, rows)
    order = np.argsort(rank, kind="stable")
    before = np.cumsum(lengths) - lengths
    start = np.empty_like(rows)
    start[order] = np.cumsum(rows[order]) - rows[order] - before[rank[order]]
    return lengths, start
