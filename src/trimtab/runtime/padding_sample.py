"""Samples without loss: for a rank with no sample of its own, and one visual where every rank must encode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trimtab.families.batch_layout import VisualStream
from trimtab.runtime.host_batch import HostLayout, HostSample
from trimtab.runtime.repack import BatchForm


def padding_sample(form: BatchForm, layout: HostLayout) -> HostSample:
    """One padding token."""
    return _sample([layout.pad_token], [0], {}, np.zeros((0, 6), dtype=np.int64), form, layout)


def padding_visual(stream: int, form: BatchForm, layout: HostLayout) -> HostSample:
    """The smallest visual the model takes, all zeros, with its placeholders; needs the form of other ranks' pixels."""
    declared = layout.streams[stream]
    cell = form.cells[declared.pixels]
    smallest = declared.smallest(layout.config)
    columns = {key: [value] for key, value in smallest.items() if key in form.cells}
    arrays = {key: np.array(value) for key, value in ({k: [v] for k, v in smallest.items()} | columns).items()}
    known = {key: value for key, value in arrays.items() if key in form.cells or key not in declared.beside}
    sizes = declared.measure(layout.config, known, _pixel_shape(declared, cell.shape))
    rows, tokens = int(sizes.pixel_rows[0]), int(sizes.tokens[0])
    tensors: dict[str, Tensor] = {declared.pixels: torch.zeros(rows, *cell.shape, dtype=cell.dtype)}
    for key, value in columns.items():
        tensors[key] = torch.tensor(value, dtype=form.cells[key].dtype).view(1, *form.cells[key].shape)
    visual = np.array([[stream, *sizes.grid_thw[0], rows, tokens]], dtype=np.int64)
    opening, closing = (layout.config.get(f"vision_{end}_token_id") for end in ("start", "end"))
    around = ([] if opening is None else [opening], [] if closing is None else [closing])
    ids = [*around[0], *[layout.placeholders[stream]] * tokens, *around[1]] or [layout.pad_token]
    types = [declared.token_type if token == layout.placeholders[stream] else 0 for token in ids]
    return _sample(ids, types, tensors, visual, form, layout)


def _pixel_shape(stream: VisualStream, cell: tuple[int, ...]) -> tuple[int, ...]:
    return (1, 1, *cell) if stream.padded else (1, *cell)


def _sample(
    ids: list[int],
    types: list[int],
    tensors: Mapping[str, Tensor],
    visuals: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    form: BatchForm,
    layout: HostLayout,
) -> HostSample:
    columns = dict(tensors)
    for key, cell in form.cells.items():
        kind, count = layout.rows[key], len(ids)
        if kind == "samples":
            columns[key] = torch.zeros(1, *cell.shape, dtype=cell.dtype)
        if kind != "tokens":
            continue
        if key == "input_ids":
            columns[key] = torch.tensor(ids, dtype=cell.dtype)
        elif key == "mm_token_type_ids":
            columns[key] = torch.tensor(types, dtype=cell.dtype)
        elif key == "attention_mask":
            columns[key] = torch.ones(count, dtype=cell.dtype)
        elif key == "position_ids":
            positions = torch.arange(count, dtype=cell.dtype).view(count, *[1] * len(cell.shape))
            columns[key] = positions.expand(count, *cell.shape)
        else:
            columns[key] = torch.full((count, *cell.shape), layout.padding(key), dtype=cell.dtype)
    return HostSample(tensors=columns, tokens=len(ids), loss_tokens=0, loss_weight=0.0, visuals=visuals)
