"""Encoded samples and decoded units -> the packs of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.planning.routing import route_vision
from trimtab.planning.sequence_slices import DEFAULT_PACKING, held_slices, sequence_groups
from trimtab.planning.visual_pieces import slice_pieces
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequencePacking, SequenceSlice


@dataclass(frozen=True, eq=False, kw_only=True)
class PackableSample:
    """One sample's text side (l tokens).

    Attributes:
        input_ids: int64 [l].
        position_ids: int64 [3, l].
        loss_weights: float32 [l], weight of predicting each token; the first is never predicted.
    """

    input_ids: Tensor
    position_ids: Tensor
    loss_weights: Tensor


def pack(
    plan: StepPlan,
    batch: BatchMetadata,
    rank: int,
    micro_batch: int,
    samples: Mapping[int, PackableSample],
    unit_patches: Sequence[NDArray[np.float32]],
    *,
    patch_dim: int,
    pad_token: int,
    placeholders: Sequence[int] = (),
    packing: SequencePacking = DEFAULT_PACKING,
) -> PackedBatch:
    """Build what ``rank`` runs in ``micro_batch``.

    Args:
        plan: of the step.
        batch: of the step.
        rank: whose pack.
        micro_batch: of which micro-batch.
        samples: by row of the batch, those of ``needed_rows``.
        unit_patches: float32 [patches, patch_dim] of each unit in ``plan.unit_rows(rank, micro_batch)`` order.
        patch_dim: values in a patch.
        pad_token: fills a pack without samples.
        placeholders: tokens that stand for visuals; needed where a sample with visuals is sharded.
        packing: see ``sequence_groups``.
    """
    groups = sequence_groups(plan, batch.tokens, micro_batch, packing=packing)
    slices = held_slices(plan, batch.tokens, groups, rank, micro_batch)
    own = tuple(group for group in groups if rank in group.ranks)
    held = [_held(samples[part.row], part) for part in slices] or [_held(padding_sample(pad_token), _PADDING)]
    shared = sum(group.shares[rank - group.first_rank] for group in own)
    tokens = np.array([len(part.input_ids) for part in held])
    starts = np.cumsum(tokens) - tokens
    positions = {row: _placeholders(sample, placeholders) for row, sample in samples.items() if plan.degree[row] > 1}
    route = None
    if bool((plan.units.micro_batch == micro_batch).any()):
        route = route_vision(plan, batch, micro_batch, placeholders=positions, packing=packing).local(rank)
    pixels, grids = _units(plan, batch, rank, micro_batch, unit_patches, patch_dim)
    return PackedBatch(
        **_joined(held, starts.tolist()),
        packed_lengths=tuple(tokens[starts >= shared].tolist()),
        sequence_groups=own,
        pixel_values=pixels,
        unit_grid_thw=grids,
        visual_is_video=_visual_is_video(batch, slices, positions),
        visual_route=route,
    )


def needed_rows(plan: StepPlan, batch: BatchMetadata, rank: int) -> NDArray[np.int64]:
    """Rows of the samples whose text ``rank`` needs: those it holds some of, and sharded ones it encodes visuals of."""
    held = (plan.rank <= rank) & (rank < plan.rank + plan.degree)
    keys = batch.visual_keys[plan.units.visual[plan.units.rank == rank]]
    encoded = np.zeros(len(batch), dtype=np.bool_)
    encoded[batch.sample_of_visual[np.isin(batch.visual_keys, keys)]] = True
    return np.flatnonzero(held | (encoded & (plan.degree > 1)))


def padding_sample(pad_token: int) -> PackableSample:
    """One token without loss."""
    return PackableSample(
        input_ids=torch.tensor([pad_token]),
        position_ids=torch.zeros(3, 1, dtype=torch.int64),
        loss_weights=torch.zeros(1),
    )


_PADDING = SequenceSlice(row=-1, start=0, stop=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Held:
    """A slice of a sample (l tokens, k that predict a loss token); fields as in ``PackedBatch``."""

    input_ids: Tensor
    position_ids: Tensor
    loss_positions: Tensor
    targets: Tensor
    loss_weights: Tensor
    loss_rows: Tensor
    loss_places: Tensor


def _held(sample: PackableSample, part: SequenceSlice) -> _Held:
    predicted = torch.nonzero(sample.loss_weights)[:, 0]
    predicted = predicted[predicted > 0]  # the logits of the token before predict it
    places = torch.nonzero((predicted > part.start) & (predicted <= part.stop))[:, 0]
    predicted = predicted[places]
    return _Held(
        input_ids=sample.input_ids[part.start : part.stop],
        position_ids=sample.position_ids[:, part.start : part.stop],
        loss_positions=predicted - 1 - part.start,
        targets=sample.input_ids[predicted],
        loss_weights=sample.loss_weights[predicted],
        loss_rows=torch.full_like(predicted, part.row),
        loss_places=places,
    )


def _joined(held: Sequence[_Held], starts: Sequence[int]) -> dict[str, Any]:
    """The slices end to end, as fields of ``PackedBatch``."""
    names = ("targets", "loss_weights", "loss_rows", "loss_places")
    return {
        "input_ids": torch.cat([part.input_ids for part in held])[None],
        "position_ids": torch.cat([part.position_ids for part in held], dim=1)[:, None],
        "loss_positions": torch.cat([part.loss_positions + start for part, start in zip(held, starts, strict=True)]),
        **{name: torch.cat([getattr(part, name) for part in held]) for name in names},
    }


def _placeholders(sample: PackableSample, tokens: Sequence[int]) -> NDArray[np.int64]:
    """int64 [e], where a sample's visual tokens stand."""
    return np.flatnonzero(np.isin(sample.input_ids.numpy(), tokens))


def _units(
    plan: StepPlan,
    batch: BatchMetadata,
    rank: int,
    micro_batch: int,
    unit_patches: Sequence[NDArray[np.float32]],
    patch_dim: int,
) -> tuple[Tensor, Tensor]:
    unit_rows = plan.unit_rows(rank, micro_batch)
    if not len(unit_rows):
        merge = batch.merge_size
        return torch.zeros(merge * merge, patch_dim), torch.tensor([[1, merge, merge]])
    grids = batch.grid_thw[plan.units.visual[unit_rows]].copy()
    grids[:, 0] = (plan.units.frame_stop - plan.units.frame_start)[unit_rows]
    return torch.from_numpy(np.concatenate(unit_patches)), torch.from_numpy(grids)


def _visual_is_video(
    batch: BatchMetadata, slices: Sequence[SequenceSlice], placeholders: Mapping[int, NDArray[np.int64]]
) -> Tensor:
    pieces = [piece for part in slices for piece in slice_pieces(batch, part, placeholders.get(part.row))]
    visual, start, stop = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return torch.from_numpy(np.repeat(batch.is_video[visual], stop - start))
