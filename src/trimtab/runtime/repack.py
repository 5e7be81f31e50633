"""Puts samples together as the host's collator would have: padded or packed, with the keys its batches have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import MetadataError
from trimtab.families.batch_layout import IGNORED_LABEL, VisualStream
from trimtab.runtime.host_batch import CUMULATIVE_KEYS, Form, HostBatch, HostLayout, HostSample


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of a batch key: its dtype and its shape without the row dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BatchForm:
    """How every rank's batches look.

    Attributes:
        form: padded or packed.
        cells: by batch key.
        boundaries: dtypes (or int) of the segment-bound keys.
        counts_visuals: sample keys that hold the sample's number of visuals, with their dtype.
        multiple: lengths are padded to a multiple of it.
    """

    form: Form
    cells: Mapping[str, Cell]
    boundaries: Mapping[str, Any]
    counts_visuals: Mapping[str, torch.dtype]
    multiple: int = 1


def repack(samples: Sequence[HostSample], form: BatchForm, layout: HostLayout) -> HostBatch:
    """Put at least one sample together.

    The first label of each sample is ignored: no token of its own predicts it, and in a pack the token of another
    sample would.

    Raises:
        MetadataError: visuals of different lengths cannot be stacked as this family's batches are.
    """
    batch: HostBatch = {}
    packed = form.form == "packed"
    lengths = [sample.tokens for sample in samples]
    for key, cell in form.cells.items():
        if layout.rows[key] == "tokens":
            rows = [_without_first_label(key, sample.tensors[key]) for sample in samples]
            fill = layout.padding(key)
            column = _pack(rows, cell, fill, form.multiple) if packed else _pad(rows, cell, fill, form)
            batch[key] = column.movedim((0, 1), (-2, -1)).contiguous()
        elif layout.rows[key] == "samples":
            batch[key] = torch.cat([sample.tensors[key] for sample in samples])
    for index, stream in enumerate(layout.streams):
        if any((sample.visuals[:, 0] == index).any() for sample in samples):
            _put_visuals(batch, samples, form, stream, index)
    for key, dtype in form.counts_visuals.items():
        batch[key] = torch.tensor([int((sample.visuals[:, 0] == 0).sum()) for sample in samples], dtype=dtype)
    _put_boundaries(batch, lengths, form)
    return batch


def _without_first_label(key: str, rows: Tensor) -> Tensor:
    if key != "labels" or not len(rows) or bool((rows[0] == IGNORED_LABEL).all()):
        return rows
    rows = rows.clone()
    rows[0] = IGNORED_LABEL
    return rows


def _padded_length(length: int, multiple: int) -> int:
    return -(-max(length, 1) // multiple) * multiple


def _pack(rows: Sequence[Tensor], cell: Cell, fill: float, multiple: int) -> Tensor:
    length = sum(len(each) for each in rows)
    missing = _padded_length(length, multiple) - length
    if missing:
        rows = [*rows, torch.full((missing, *cell.shape), fill, dtype=cell.dtype, device=rows[0].device)]
    return torch.cat(list(rows))[None]


def _pad(rows: Sequence[Tensor], cell: Cell, fill: float, form: BatchForm) -> Tensor:
    length = _padded_length(max(len(each) for each in rows), form.multiple)
    column = torch.full((len(rows), length, *cell.shape), fill, dtype=cell.dtype, device=rows[0].device)
    for index, each in enumerate(rows):
        start = length - len(each) if form.form == "padded-left" else 0
        column[index, start : start + len(each)] = each
    return column


def _put_visuals(
    batch: HostBatch, samples: Sequence[HostSample], form: BatchForm, stream: VisualStream, index: int
) -> None:
    holders = [sample for sample in samples if (sample.visuals[:, 0] == index).any()]
    pixels = [sample.tensors[stream.pixels] for sample in holders]
    if stream.padded:
        counts = np.concatenate([sample.visuals[sample.visuals[:, 0] == index, 4] for sample in holders]).tolist()
        batch[stream.pixels] = _stack(torch.cat(pixels).split(counts), stream)
    else:
        batch[stream.pixels] = torch.cat(pixels)
    for key in stream.beside:
        if key in form.cells:
            batch[key] = torch.cat([sample.tensors[key] for sample in holders])


def _stack(visuals: Sequence[Tensor], stream: VisualStream) -> Tensor:
    lengths = [len(each) for each in visuals]
    if not stream.beside and len(set(lengths)) > 1:
        raise MetadataError(
            f"{stream.pixels}: {stream.kind}s of {min(lengths)} and {max(lengths)} frames cannot share a batch of this "
            "family; sample as many frames from each"
        )
    return torch.nn.utils.rnn.pad_sequence(list(visuals), batch_first=True)


def _put_boundaries(batch: HostBatch, lengths: Sequence[int], form: BatchForm) -> None:
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    for key, kind in form.boundaries.items():
        if key in CUMULATIVE_KEYS:
            batch[key] = torch.from_numpy(bounds).to(kind)
        else:
            longest = max(lengths)
            batch[key] = torch.tensor(longest) if kind is Tensor else longest
