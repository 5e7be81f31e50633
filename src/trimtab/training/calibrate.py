"""Measures what sequences and frames of a dataset's sizes cost on these ranks, before the first step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console

from trimtab.cost.measured import MeasuredCost, fit_packs
from trimtab.errors import SettingsError
from trimtab.runtime.groups import Ranks
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.routes import LocalRoute

_REPEATS = 2
_LONGEST = 4096
_QUANTILES = (0.1, 0.5, 0.9, 1.0)

Grid = tuple[int, int]


def measure_costs(model: BalancedVLM, dataset: BatchMetadata, *, patch_dim: int, ranks: Ranks) -> MeasuredCost | None:
    """Time forward and backward of packs of the dataset's sizes; a collective of all ranks, with equal results.

    Every rank runs the same packs, so FSDP's collectives match; times are averaged over ranks. Sizes are taken at
    quantiles of the dataset, sequences and frames up to 4,096 tokens or patches; larger ones are extrapolated.

    Args:
        model: sharded; its gradients are dropped afterwards.
        dataset: sizes of all samples.
        patch_dim: values in a patch.
        ranks: of the run.

    Returns:
        None where the times do not grow with the sizes, as on a very busy machine: plan by analytic costs then. The
        first rank says so.
    """
    lengths = [min(int(value), _LONGEST) for value in np.quantile(dataset.tokens, _QUANTILES)]
    sequences = [pack for length in lengths for pack in ([length], [max(2, length // 3)] * 3)]
    language = _times(model, [_language_pack(pack, patch_dim) for pack in sequences], ranks)
    grids = _grids(dataset)
    frames = [(grid, count) for grid in grids for count in (1, 3)]
    vision = _times(model, [_vision_pack(grid, count, patch_dim) for grid, count in frames], ranks)
    model.zero_grad(set_to_none=True)
    sizes = [[height * width] * count for (height, width), count in frames]
    try:
        return MeasuredCost(language=fit_packs(sequences, language).item, frame=fit_packs(sizes, vision).item)
    except SettingsError as error:
        if ranks.is_first:
            Console(stderr=True).print(f"plans use analytic costs: {error}", markup=False, soft_wrap=True)
        return None


def _grids(dataset: BatchMetadata) -> list[Grid]:
    """Frames at quantiles of the dataset's patches a frame; where it has none, a few nominal ones."""
    merge = dataset.merge_size
    if not dataset.num_visuals:
        return [(merge * side, merge * side) for side in (1, 4, 8, 16)]
    patches = dataset.grid_thw[:, 1] * dataset.grid_thw[:, 2]
    order = np.argsort(patches, kind="stable")
    fitting = order[patches[order] <= _LONGEST]
    chosen = fitting if len(fitting) else order[:1]
    rows = [chosen[int(quantile * (len(chosen) - 1))] for quantile in _QUANTILES]
    return [(int(dataset.grid_thw[row, 1]), int(dataset.grid_thw[row, 2])) for row in rows]


def _times(model: BalancedVLM, packs: Sequence[PackedBatch], ranks: Ranks) -> list[float]:
    """Least time of each pack, nanoseconds, mean over ranks."""
    least = []
    for pack in packs:
        moved = pack.to(ranks.device)
        _run(model, moved, ranks.device)
        least.append(min(_run(model, moved, ranks.device) for _ in range(_REPEATS)))
    total = torch.tensor(least, dtype=torch.float64)
    dist.all_reduce(total, group=ranks.control)
    return (total / ranks.size).tolist()


def _run(model: BalancedVLM, pack: PackedBatch, device: torch.device) -> float:
    clock = time.thread_time_ns if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter_ns
    _wait(device)
    began = clock()
    model(pack).loss.sum().backward()
    _wait(device)
    return float(clock() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _language_pack(lengths: Sequence[int], patch_dim: int) -> PackedBatch:
    return _pack(lengths, torch.zeros(0, patch_dim), torch.zeros(0, 3, dtype=torch.int64), None)


def _vision_pack(grid: Grid, frames: int, patch_dim: int) -> PackedBatch:
    """Frames whose embeddings nobody uses, beside one token."""
    height, width = grid
    nothing = np.empty(0, dtype=np.int64)
    world = dist.get_world_size()
    route = LocalRoute(
        send_rows=nothing,
        send_splits=(0,) * world,
        receive_splits=(0,) * world,
        receive_rows=nothing,
        result_rows=0,
    )
    pixels = torch.zeros(frames * height * width, patch_dim)
    return _pack([2], pixels, torch.tensor([[frames, height, width]]), route)


def _pack(lengths: Sequence[int], pixels: torch.Tensor, grids: torch.Tensor, route: LocalRoute | None) -> PackedBatch:
    positions = torch.cat([torch.arange(length) for length in lengths])
    return PackedBatch(
        input_ids=torch.zeros(1, sum(lengths), dtype=torch.int64),
        position_ids=positions.expand(3, 1, -1),
        packed_lengths=tuple(lengths),
        sequence_groups=(),
        loss_positions=torch.zeros(1, dtype=torch.int64),
        targets=torch.zeros(1, dtype=torch.int64),
        loss_weights=torch.ones(1),
        loss_rows=torch.zeros(1, dtype=torch.int64),
        loss_places=torch.zeros(1, dtype=torch.int64),
        pixel_values=pixels,
        unit_grid_thw=grids,
        visual_is_video=torch.zeros(0, dtype=torch.bool),
        visual_route=route,
    )
