"""How each rank's batches look, as integers on the wire, and the one form all ranks then use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import MetadataError, RankDisagreementError
from trimtab.runtime.host_batch import CUMULATIVE_KEYS, LONGEST_KEYS, Form, HostLayout, HostSample, MicroBatch
from trimtab.runtime.repack import BatchForm, Cell

_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
_FORMS: tuple[Form | None, ...] = (None, "padded", "padded-left", "packed")
_MOST_DIMENSIONS = 4
_CELL = 2 + _MOST_DIMENSIONS


def encode_form(micro_batches: Sequence[MicroBatch], layout: HostLayout) -> list[int]:
    """A rank's form as integers, equally many on every rank of a layout; 0 stands for what it does not have.

    Raises:
        MetadataError: a tensor has too many dimensions or a dtype that cannot be sent.
    """
    cells: dict[str, Cell] = {}
    for each in micro_batches:
        for sample in each.samples:
            for key, tensor in sample.tensors.items():
                cells.setdefault(key, Cell(dtype=tensor.dtype, shape=tuple(tensor.shape[1:])))
    bounds = {key: kind for each in micro_batches for key, kind in each.boundaries.items()}
    form = next((each.form for each in micro_batches if each.form is not None), None)
    _check_alike([sample for each in micro_batches for sample in each.samples], cells, layout)
    row = [int(any(each.samples for each in micro_batches)), _FORMS.index(form)]
    row += [_dtype_code(key, bounds[key]) if key in bounds else 0 for key in CUMULATIVE_KEYS]
    row += [0 if key not in bounds else 2 if bounds[key] is Tensor else 1 for key in LONGEST_KEYS]
    row += [_counts_code(micro_batches, key) for key in layout.layout.samples_from_visuals]
    return row + [code for key in layout.keys for code in _cell_code(key, cells.get(key))]


def merge_forms(rows: NDArray[np.int64], layout: HostLayout, multiple: int) -> BatchForm:
    """The one form of all ranks.

    Ranks may lack visuals; whole-number dtypes that differ are widened.

    Args:
        rows: int64 [R, ...], ``encode_form`` of each rank.
        layout: of the model.
        multiple: lengths are padded to a multiple of it.

    Raises:
        RankDisagreementError: floating-point dtypes, shapes or layouts differ, or a rank lacks a key others have.
    """
    holders = np.flatnonzero(rows[:, 0])
    counts = layout.layout.samples_from_visuals
    at = 2 + len(CUMULATIVE_KEYS)
    longest, at = rows[:, at : at + len(LONGEST_KEYS)], at + len(LONGEST_KEYS)
    counted, at = rows[:, at : at + len(counts)], at + len(counts)
    cells = rows[:, at:].reshape(len(rows), len(layout.keys), _CELL)
    boundaries: dict[str, Any] = {
        key: _DTYPES[int(code) - 1]
        for key, code in zip(CUMULATIVE_KEYS, rows[:, 2 : 2 + len(CUMULATIVE_KEYS)].max(axis=0), strict=True)
        if code
    }
    boundaries |= {
        key: Tensor if code == 2 else int for key, code in zip(LONGEST_KEYS, longest.max(axis=0), strict=True) if code
    }
    return BatchForm(
        form=_one_form(rows[:, 1]),
        cells={
            key: cell
            for index, key in enumerate(layout.keys)
            if (cell := _one_cell(key, cells[:, index], _holders(key, cells, holders, layout))) is not None
        },
        boundaries=boundaries,
        counts_visuals={
            key: _DTYPES[int(code) - 1] for key, code in zip(counts, counted.max(axis=0), strict=True) if code
        },
        multiple=multiple,
    )


def _one_form(codes: NDArray[np.int64]) -> Form:
    told = {int(code): rank for rank, code in enumerate(codes.tolist()) if code}
    if len(told) > 1:
        (first, rank), (second, other), *_ = told.items()
        raise RankDisagreementError(
            f"rank {rank} has {_FORMS[first]} batches, rank {other} {_FORMS[second]}; use one collator on all ranks"
        )
    return _FORMS[next(iter(told), 1)] or "padded"


def _holders(key: str, cells: NDArray[np.int64], samples: NDArray[np.int64], layout: HostLayout) -> NDArray[np.int64]:
    """Ranks that must have the key if any has: those with samples, or with visuals of its stream."""
    stream = layout.stream_of(key)
    if stream is None:
        return samples
    return np.flatnonzero(cells[:, layout.keys.index(layout.streams[stream].pixels), 0])


def _one_cell(key: str, codes: NDArray[np.int64], holders: NDArray[np.int64]) -> Cell | None:
    having = np.flatnonzero(codes[:, 0])
    if not len(having):
        return None
    if len(lacking := np.setdiff1d(holders, having)):
        raise RankDisagreementError(
            f"rank {having[0]} has {key!r} in its batches, rank {lacking[0]} has not; use one collator on all ranks"
        )
    first = codes[having[0]]
    dtype = _DTYPES[int(first[0]) - 1]
    for rank in having[1:].tolist():
        other = _DTYPES[int(codes[rank, 0]) - 1]
        if (codes[rank, 1:] != first[1:]).any():
            raise RankDisagreementError(
                f"a row of {key!r} has shape {_shape(first)} on rank {having[0]}, {_shape(codes[rank])} on rank "
                f"{rank}; use one processor on all ranks"
            )
        if other != dtype and (other.is_floating_point or dtype.is_floating_point):
            raise RankDisagreementError(
                f"{key!r} is {dtype} on rank {having[0]}, {other} on rank {rank}; give every rank one dtype, "
                "placeholders for missing visuals included"
            )
        dtype = torch.promote_types(dtype, other)
    return Cell(dtype=dtype, shape=_shape(first))


def _shape(code: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(code[2 : 2 + int(code[1])].tolist())


def _cell_code(key: str, cell: Cell | None) -> list[int]:
    if cell is None:
        return [0] * _CELL
    if len(cell.shape) > _MOST_DIMENSIONS:
        raise MetadataError(f"a row of {key!r} has shape {cell.shape}; at most {_MOST_DIMENSIONS} dimensions can move")
    return [_dtype_code(key, cell.dtype), len(cell.shape), *cell.shape, *[0] * (_MOST_DIMENSIONS - len(cell.shape))]


def _check_alike(samples: Sequence[HostSample], cells: dict[str, Cell], layout: HostLayout) -> None:
    """All samples have the keys one of them has, those of visuals where they have such visuals."""
    for index, sample in enumerate(samples):
        streams = set(sample.visuals[:, 0].tolist())
        for key in cells:
            stream = layout.stream_of(key)
            if key not in sample.tensors and (stream is None or stream in streams):
                raise MetadataError(f"sample {index} has no {key!r}, others of this rank have; collate all alike")


def _dtype_code(key: str, dtype: torch.dtype) -> int:
    if dtype not in _DTYPES:
        raise MetadataError(f"{key!r} is {dtype}, which cannot be sent; use one of {', '.join(map(str, _DTYPES))}")
    return _DTYPES.index(dtype) + 1


def _counts_code(micro_batches: Sequence[MicroBatch], key: str) -> int:
    value = next((each.original[key] for each in micro_batches if each.original.get(key) is not None), None)
    if value is None:
        return 0
    return _dtype_code(key, value.dtype if isinstance(value, Tensor) else torch.int64)
