"""Moves whole samples between ranks: one uneven all-to-all for each dtype, sizes known from the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trimtab.runtime.host_batch import HostLayout, HostSample
from trimtab.runtime.repack import Cell
from trimtab.runtime.step_metadata import StepMetadata, wire_device


def row_counts(metadata: StepMetadata, layout: HostLayout, keys: Sequence[str]) -> NDArray[np.int64]:
    """int64 [N, K], rows each sample has of each key."""
    counts = np.ones((len(metadata), len(keys)), dtype=np.int64)
    for column, key in enumerate(keys):
        stream = layout.stream_of(key)
        if stream is not None:
            own = metadata.visuals[:, 0] == stream
            rows = metadata.visuals[:, 4] if key == layout.streams[stream].pixels else np.ones_like(own, dtype=np.int64)
            counts[:, column] = 0
            np.add.at(counts[:, column], metadata.sample_of_visual[own], rows[own])
        elif layout.rows[key] == "tokens":
            counts[:, column] = metadata.tokens
    return counts


def sample_bytes(metadata: StepMetadata, layout: HostLayout) -> NDArray[np.int64]:
    """int64 [N], bytes each sample has on the wire."""
    cells = metadata.form.cells
    counts = row_counts(metadata, layout, tuple(cells))
    sizes = np.array([_numel(cell) * cell.dtype.itemsize for cell in cells.values()], dtype=np.int64)
    return np.asarray(counts @ sizes if len(sizes) else counts.sum(axis=1))


def exchange_samples(
    samples: Sequence[HostSample],
    metadata: StepMetadata,
    target: NDArray[np.int64],
    layout: HostLayout,
    group: dist.ProcessGroup,
) -> dict[int, HostSample]:
    """Send samples where they belong; one collective of ``group`` for each dtype, with nothing to send too.

    Args:
        samples: of this rank, in metadata order.
        metadata: of the step.
        target: int64 [N], rank of each sample.
        layout: of the model.
        group: the data-parallel ranks.

    Returns:
        The samples of this rank by row of the metadata, those that stay as they were.
    """
    me = group.rank()
    mine = np.flatnonzero(metadata.rank == me)
    held = dict(zip(mine.tolist(), samples, strict=True))
    leaving = [row for row in _by_rank(target[mine], mine) if target[row] != me]
    coming = np.flatnonzero((target == me) & (metadata.rank != me)).tolist()  # rank by rank already
    tensors: dict[int, dict[str, Tensor]] = {row: {} for row in coming}
    cells = metadata.form.cells
    for dtype in sorted({cell.dtype for cell in cells.values()}, key=str):
        keys = [key for key, cell in cells.items() if cell.dtype == dtype]
        counts = row_counts(metadata, layout, keys)
        flat = [
            held[row].tensors[key].to(dtype).reshape(-1) for row in leaving for key in keys if key in held[row].tensors
        ]
        numel = counts @ np.array([_numel(cells[key]) for key in keys], dtype=np.int64)
        received = _all_to_all(
            torch.cat(flat) if flat else torch.empty(0, dtype=dtype),
            _splits(target[leaving], numel[leaving], group.size()),
            _splits(metadata.rank[coming], numel[coming], group.size()),
            group,
        )
        _unpack(received, tensors, coming, keys, counts, cells, layout)
    kept = {row: held[row] for row in mine.tolist() if target[row] == me}
    arrived = {row: _sample(metadata, row, tensors[row]) for row in coming}
    return dict(sorted((kept | arrived).items()))


def _by_rank(ranks: NDArray[np.int64], rows: NDArray[np.int64]) -> list[int]:
    order: list[int] = rows[np.argsort(ranks, kind="stable")].tolist()
    return order


def _numel(cell: Cell) -> int:
    return int(np.prod(cell.shape, dtype=np.int64))


def _splits(ranks: NDArray[np.int64], numel: NDArray[np.int64], size: int) -> list[int]:
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, ranks, numel)
    splits: list[int] = totals.tolist()
    return splits


def _all_to_all(send: Tensor, send_splits: list[int], receive_splits: list[int], group: dist.ProcessGroup) -> Tensor:
    home, wire, size = send.device, wire_device(group), send.dtype.itemsize
    received = torch.empty(sum(receive_splits) * size, dtype=torch.uint8, device=wire)
    dist.all_to_all_single(  # as bytes: no backend sends every dtype
        received,
        send.view(torch.uint8).to(wire),
        [split * size for split in receive_splits],
        [split * size for split in send_splits],
        group=group,
    )
    return received.to(home).view(send.dtype)


def _unpack(
    received: Tensor,
    tensors: Mapping[int, dict[str, Tensor]],
    coming: Sequence[int],
    keys: Sequence[str],
    counts: NDArray[np.int64],
    cells: Mapping[str, Cell],
    layout: HostLayout,
) -> None:
    at = 0
    for row in coming:
        for column, key in enumerate(keys):
            rows = int(counts[row, column])
            size = rows * _numel(cells[key])
            if rows or layout.stream_of(key) is None:
                tensors[row][key] = received[at : at + size].view(rows, *cells[key].shape)
            at += size


def _sample(metadata: StepMetadata, row: int, tensors: dict[str, Tensor]) -> HostSample:
    first, last = metadata.visual_offsets[row : row + 2]
    return HostSample(
        tensors=tensors,
        tokens=int(metadata.tokens[row]),
        loss_tokens=int(metadata.loss_tokens[row]),
        loss_weight=float(metadata.loss_weight[row]),
        visuals=metadata.visuals[first:last],
    )
