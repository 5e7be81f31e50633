"""Takes a host's micro-batch apart: padded [B, L] or packed [1, L], every visual tied to its sample by placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import MetadataError
from trimtab.families.batch_layout import IGNORED_LABEL, VisualSizes, VisualStream
from trimtab.runtime.host_batch import (
    CUMULATIVE_KEYS,
    LONGEST_KEYS,
    Form,
    HostBatch,
    HostLayout,
    HostSample,
    MicroBatch,
)


def depack(batch: HostBatch, layout: HostLayout) -> MicroBatch:
    """Take a micro-batch apart.

    Args:
        batch: as the host's collator gave it: padded ``input_ids`` [B, L] with an ``attention_mask``, or a pack [1, L]
            with ``cu_seqlens`` (or one of its other names) or ``position_ids`` that restart at every sample.
        layout: of the model.

    Raises:
        MetadataError: a key is unknown, or grids, pixels, placeholders and lengths contradict each other.
    """
    if not isinstance(batch, Mapping):
        raise MetadataError(f"a micro-batch is a {type(batch).__name__}; give a dictionary of tensors, by name")
    tensors, constants = _columns(batch, layout)
    if "input_ids" not in tensors or tensors["input_ids"].dim() != 2:
        raise MetadataError("a micro-batch needs input_ids of shape [batch, length]; check the collator")
    form, extents = _extents(tensors, batch)
    _check_nothing_trails(tensors, extents)
    cuts = _Cuts(tensors["input_ids"], extents)
    parts: list[dict[str, Tensor]] = [{} for _ in extents]
    for key, value in tensors.items():
        kind = layout.rows.get(key)
        if kind == "tokens":
            cuts.tokens(key, value, parts)
        elif kind == "samples" and key not in layout.layout.samples_from_visuals:
            _split_samples(key, value, parts)
    visuals = _tie_visuals(tensors, layout, cuts, parts)
    samples = [_sample(part, visuals[index], index) for index, part in enumerate(parts)]
    bounds: dict[str, Any] = {key: tensors[key].dtype for key in CUMULATIVE_KEYS if key in tensors}
    bounds |= {key: type(batch[key]) for key in LONGEST_KEYS if batch.get(key) is not None}
    return MicroBatch(samples=samples, form=form, boundaries=bounds, constants=constants, original=batch)


class _Cuts:
    """Where samples lie in the token columns: (row, start, stop) of each."""

    def __init__(self, input_ids: Tensor, extents: list[tuple[int, int, int]]) -> None:
        self.input_ids = input_ids
        self.extents = extents

    def tokens(self, key: str, value: Tensor, parts: list[dict[str, Tensor]]) -> None:
        """Cut a token column, [..., B, L], into [tokens, ...] of each sample."""
        if value.shape[-2:] != self.input_ids.shape:
            raise MetadataError(
                f"{key} has shape {list(value.shape)}, but input_ids {list(self.input_ids.shape)}; its last two "
                "dimensions must be batch and length (masks of pairs of tokens cannot be moved)"
            )
        rows_first = value.movedim((-2, -1), (0, 1))
        for part, (row, start, stop) in zip(parts, self.extents, strict=True):
            part[key] = rows_first[row, start:stop]

    def placeholders(self, token: int) -> NDArray[np.int64]:
        """int64 [N], how often a token occurs in each sample."""
        found = (self.input_ids == token).cpu().numpy()
        counts = [int(found[row, start:stop].sum()) for row, start, stop in self.extents]
        return np.array(counts, dtype=np.int64)


def _columns(batch: HostBatch, layout: HostLayout) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    constants: dict[str, Any] = {}
    for key, value in batch.items():
        if value is None or key in LONGEST_KEYS:
            continue
        if key in layout.rows or key in CUMULATIVE_KEYS:
            tensors[key] = _as_tensor(key, value)
        elif isinstance(value, bool | int | float | str):
            constants[key] = value
        else:
            raise MetadataError(
                f"batch key {key!r} ({type(value).__name__}) is not one of the family's; say what its rows belong to "
                f"with rows={{{key!r}: 'tokens'}} or 'samples', or leave it out in the collator"
            )
    return tensors, constants


def _as_tensor(key: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise MetadataError(f"batch key {key!r} cannot be read as a tensor ({error}); collate it as one") from error


def _extents(tensors: Mapping[str, Tensor], batch: HostBatch) -> tuple[Form | None, list[tuple[int, int, int]]]:
    ids = tensors["input_ids"]
    bounds = next((tensors[key] for key in CUMULATIVE_KEYS if key in tensors), None)
    mask = tensors.get("attention_mask")
    positions = tensors.get("position_ids")
    if bounds is not None:
        if bounds.is_floating_point():
            raise MetadataError(f"segment bounds are {bounds.dtype}; give whole numbers, cumulative lengths from 0")
        return "packed", _from_bounds(bounds.reshape(-1).tolist(), ids)
    if mask is None and positions is not None and ids.shape[0] == 1:
        flat = positions.reshape(-1, ids.shape[1])
        starts = torch.nonzero((flat == 0).all(dim=0))[:, 0].tolist()
        return "packed", _from_bounds([*starts, ids.shape[1]], ids)
    if mask is None:
        return None, [(row, 0, ids.shape[1]) for row in range(ids.shape[0])]
    return _from_mask(mask)


def _check_nothing_trails(tensors: Mapping[str, Tensor], extents: list[tuple[int, int, int]]) -> None:
    """Tokens beyond the samples' bounds are padding, and padding has no loss."""
    labels = tensors.get("labels")
    if labels is None or labels.shape != tensors["input_ids"].shape:
        return
    live = labels != IGNORED_LABEL
    for row, start, stop in extents:
        live[row, start:stop] = False
    if live.any():
        row, at = torch.nonzero(live)[0].tolist()
        raise MetadataError(
            f"{int(live.sum())} labelled tokens, the first at {at} of row {row}, lie outside every sample "
            f"(attention_mask or segment bounds); label padding {IGNORED_LABEL}, or extend the bounds"
        )


def _from_bounds(bounds: list[int], ids: Tensor) -> list[tuple[int, int, int]]:
    if ids.shape[0] != 1:
        raise MetadataError(f"segment bounds need one row of tokens, but input_ids has {ids.shape[0]}; pack them")
    if not bounds or bounds[0] != 0 or bounds[-1] > ids.shape[1] or sorted(bounds) != bounds:
        raise MetadataError(
            f"segment bounds {bounds[:6]}… must rise from 0 to at most {ids.shape[1]} tokens; check the collator"
        )
    return [(0, start, stop) for start, stop in pairwise(bounds)]


def _from_mask(mask: Tensor) -> tuple[Form | None, list[tuple[int, int, int]]]:
    if mask.dim() != 2:
        raise MetadataError(f"attention_mask has shape {list(mask.shape)}; give it as [batch, length]")
    present = mask.cpu().numpy() != 0
    counts = present.sum(axis=1)
    starts = present.argmax(axis=1)
    left = False
    right = False
    extents = []
    for row, (count, start) in enumerate(zip(counts.tolist(), starts.tolist(), strict=True)):
        if not present[row, start : start + count].all():
            raise MetadataError(f"row {row}: attention_mask has gaps, so its sample has no bounds; mask only padding")
        extents.append((row, start, start + count))
        left |= bool(count) and start > 0
        right |= bool(count) and start + count < mask.shape[1]
    return ("padded-left" if left and not right else "padded" if right else None), extents


def _split_samples(key: str, value: Tensor, parts: list[dict[str, Tensor]]) -> None:
    if value.dim() < 1 or len(value) != len(parts):
        raise MetadataError(f"{key} has shape {list(value.shape)} for {len(parts)} samples; give one row a sample")
    for index, part in enumerate(parts):
        part[key] = value[index : index + 1]


def _tie_visuals(
    tensors: Mapping[str, Tensor], layout: HostLayout, cuts: _Cuts, parts: list[dict[str, Tensor]]
) -> list[NDArray[np.int64]]:
    """Give each sample its pixels and columns; returns its visuals' sizes."""
    tables: list[list[NDArray[np.int64]]] = [[np.zeros((0, 6), dtype=np.int64)] for _ in parts]
    for index, stream in enumerate(layout.streams):
        placed = cuts.placeholders(layout.placeholders[index])
        if stream.pixels not in tensors or not len(tensors[stream.pixels]):
            if placed.any():
                sample = int(np.argmax(placed > 0))
                raise MetadataError(
                    f"sample {sample} has {placed[sample]} {stream.kind} placeholders, but the batch has no "
                    f"{stream.pixels}; keep the processor's outputs together"
                )
            continue
        sizes = _measure(tensors, layout, stream)
        used = np.flatnonzero(sizes.tokens > 0)
        owned = _visuals_of_samples(sizes.tokens[used], placed, stream.kind)
        starts = np.concatenate([[0], np.cumsum(sizes.pixel_rows)])
        for sample, (first, last) in enumerate(owned):
            rows = used[first:last]
            if not len(rows):
                continue
            _take(tensors, stream, parts[sample], rows, sizes.pixel_rows, starts)
            tables[sample].append(_table(index, sizes, rows))
    return [np.concatenate(each) for each in tables]


def _measure(tensors: Mapping[str, Tensor], layout: HostLayout, stream: VisualStream) -> VisualSizes:
    columns = {}
    for key in (*stream.beside, *layout.layout.samples_from_visuals):
        if key in tensors:
            values = (
                tensors[key].cpu().float().numpy() if tensors[key].is_floating_point() else tensors[key].cpu().numpy()
            )
            if not np.isfinite(values).all():
                raise MetadataError(f"{key} holds a value that is not a number; check the processor")
            columns[key] = values
    pixels = tensors[stream.pixels]
    try:
        sizes = stream.measure(layout.config, columns, tuple(pixels.shape))
    except KeyError as error:
        raise MetadataError(f"{stream.pixels} is given without {error}; the processor gives both") from error
    if (sizes.grid_thw < 1).any():
        raise MetadataError(f"a {stream.kind} has a grid of {sizes.grid_thw.min()}; grids must be positive")
    expected = len(sizes.pixel_rows) if stream.padded else int(sizes.pixel_rows.sum())
    if expected != len(pixels):
        raise MetadataError(
            f"{stream.pixels} has {len(pixels)} rows, but the sizes beside it say {expected}; "
            "the processor's outputs belong together"
        )
    return sizes


def _visuals_of_samples(tokens: NDArray[np.int64], placed: NDArray[np.int64], kind: str) -> list[tuple[int, int]]:
    """(first, last) visual of each sample: those whose tokens fill its placeholders exactly."""
    ends = np.concatenate([[0], np.cumsum(tokens)])
    wanted = np.concatenate([[0], np.cumsum(placed)])
    at = np.searchsorted(ends, wanted)
    if ends[-1] != wanted[-1] or (ends[np.minimum(at, len(ends) - 1)] != wanted).any():
        exact = (at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] == wanted)
        sample = max(0, int(np.argmin(exact)) - 1) if not exact.all() else len(placed) - 1
        raise MetadataError(
            f"sample {sample} has {placed[sample]} {kind} placeholders, which no run of whole {kind}s fills "
            f"({wanted[-1]} placeholders and {ends[-1]} {kind} tokens in all); was its text cut off?"
        )
    return list(zip(at[:-1].tolist(), at[1:].tolist(), strict=True))


def _take(
    tensors: Mapping[str, Tensor],
    stream: VisualStream,
    part: dict[str, Tensor],
    rows: NDArray[np.int64],
    pixel_rows: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> None:
    pixels = tensors[stream.pixels]
    if stream.padded:
        part[stream.pixels] = torch.cat([pixels[row, : pixel_rows[row]] for row in rows.tolist()])
    elif len(rows) == rows[-1] - rows[0] + 1:
        part[stream.pixels] = pixels[int(starts[rows[0]]) : int(starts[rows[-1] + 1])]
    else:
        part[stream.pixels] = torch.cat([pixels[int(starts[row]) : int(starts[row + 1])] for row in rows.tolist()])
    for key in stream.beside:
        if key in tensors:
            if len(tensors[key]) != len(pixel_rows):
                raise MetadataError(f"{key} has {len(tensors[key])} rows for {len(pixel_rows)} {stream.kind}s")
            part[key] = tensors[key][torch.from_numpy(rows).to(tensors[key].device)]


def _table(stream: int, sizes: VisualSizes, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    columns = [np.full(len(rows), stream), *sizes.grid_thw[rows].T, sizes.pixel_rows[rows], sizes.tokens[rows]]
    return np.stack(columns, axis=1).astype(np.int64)


def _sample(part: dict[str, Tensor], visuals: NDArray[np.int64], index: int) -> HostSample:
    weights = _loss_weights(part)
    total = float(weights.sum(dtype=torch.float64)) if weights is not None else 0.0
    if not np.isfinite(total) or total < 0:
        raise MetadataError(f"sample {index}: its loss weights sum to {total}; they must be numbers of at least 0")
    return HostSample(
        tensors=part,
        tokens=len(part["input_ids"]),
        loss_tokens=0 if weights is None else int((weights != 0).sum()),
        loss_weight=total,
        visuals=visuals,
    )


def _loss_weights(part: Mapping[str, Tensor]) -> Tensor | None:
    """Weight of predicting each token after the first."""
    labels = part.get("labels")
    for key in ("loss_weights", "loss_mask"):
        if key in part:
            weights = part[key][1:].double()
            return weights if labels is None else weights * (labels[1:] != IGNORED_LABEL)
    return None if labels is None else (labels[1:] != IGNORED_LABEL).double()
