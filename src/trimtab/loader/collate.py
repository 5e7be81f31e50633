"""Encoded samples and decoded units -> the packs of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.planning.routing import route_vision
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


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
) -> PackedBatch:
    """Build what ``rank`` runs in ``micro_batch``.

    Args:
        plan: of the step.
        batch: of the step.
        rank: whose pack.
        micro_batch: of which micro-batch.
        samples: by row of the batch.
        unit_patches: float32 [patches, patch_dim] of each unit in ``plan.unit_rows(rank, micro_batch)`` order.
        patch_dim: values in a patch.
        pad_token: fills a pack without samples.
    """
    rows = plan.rows(rank, micro_batch).tolist()
    members = [samples[row] for row in rows] or [padding_sample(pad_token)]
    loss = [_loss_tokens(sample) for sample in members]
    starts = np.cumsum([0, *(len(sample.input_ids) for sample in members)])[:-1].tolist()
    any_units = bool((plan.units.micro_batch == micro_batch).any())
    pixels, grids = _units(plan, batch, rank, micro_batch, unit_patches, patch_dim)
    return PackedBatch(
        input_ids=torch.cat([sample.input_ids for sample in members])[None],
        position_ids=torch.cat([sample.position_ids for sample in members], dim=1)[:, None],
        packed_lengths=tuple(len(sample.input_ids) for sample in members),
        loss_positions=torch.cat([tokens - 1 + start for tokens, start in zip(loss, starts, strict=True)]),
        targets=torch.cat([s.input_ids[tokens] for s, tokens in zip(members, loss, strict=True)]),
        loss_weights=torch.cat([s.loss_weights[tokens] for s, tokens in zip(members, loss, strict=True)]),
        loss_rows=torch.cat([torch.full_like(tokens, row) for row, tokens in zip(rows or [-1], loss, strict=True)]),
        pixel_values=pixels,
        unit_grid_thw=grids,
        visual_is_video=_visual_is_video(batch, rows),
        visual_route=route_vision(plan, batch, micro_batch).local(rank) if any_units else None,
    )


def padding_sample(pad_token: int) -> PackableSample:
    """One token without loss."""
    return PackableSample(
        input_ids=torch.tensor([pad_token]),
        position_ids=torch.zeros(3, 1, dtype=torch.int64),
        loss_weights=torch.zeros(1),
    )


def _loss_tokens(sample: PackableSample) -> Tensor:
    """Indices of the tokens to predict; the logits of the token before predict them."""
    tokens = torch.nonzero(sample.loss_weights)[:, 0]
    return tokens[tokens > 0]


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


def _visual_is_video(batch: BatchMetadata, rows: Sequence[int]) -> Tensor:
    own = batch.take(rows)
    return torch.from_numpy(np.repeat(own.is_video, own.visual_tokens))
