"""One micro-batch of one rank as tensors: a pack of samples, and the vision units this rank encodes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from trimtab.schema.routes import LocalRoute
from trimtab.schema.sequences import SequenceGroup


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedBatch:
    """What one rank runs in one micro-batch (L tokens, K loss tokens, P patches, U vision units, E visual tokens).

    Its tokens of shared sequences come first, group by group, then its whole samples. A rank with no token in a
    micro-batch holds one padding token with no loss, so that every rank runs every layer.

    Attributes:
        input_ids: int64 [1, L].
        position_ids: int64 [3, 1, L], multimodal rotary positions, each sample counted from its own start.
        packed_lengths: tokens of each whole sample.
        sequence_groups: the shared sequences, highest degree first.
        loss_positions: int64 [K], positions whose logits predict a loss token (shifted within the sample before it is
            cut, so the token predicted may lie on the next rank).
        targets: int64 [K], the tokens predicted.
        loss_weights: float [K].
        loss_rows: int64 [K], row in the step's batch of the sample each loss token belongs to.
        loss_places: int64 [K], place of each loss token among those of its sample.
        pixel_values: float [P, patch_dim], patches of the units this rank encodes, or of one dummy image.
        unit_grid_thw: int64 [U, 3] (one dummy row where the rank encodes nothing).
        visual_is_video: bool [E], for each visual token of this pack in order.
        visual_route: how encoded rows reach the packs that hold their placeholders; None where no rank encodes.
    """

    input_ids: Tensor
    position_ids: Tensor
    packed_lengths: tuple[int, ...]
    sequence_groups: tuple[SequenceGroup, ...]
    loss_positions: Tensor
    targets: Tensor
    loss_weights: Tensor
    loss_rows: Tensor
    loss_places: Tensor
    pixel_values: Tensor
    unit_grid_thw: Tensor
    visual_is_video: Tensor
    visual_route: LocalRoute | None

    @property
    def tokens(self) -> int:
        """L."""
        return int(self.input_ids.shape[1])

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on another device."""
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in _tensor_fields(self)}
        return replace(self, **moved)

    def pin(self) -> PackedBatch:
        """The same batch in page-locked memory, for asynchronous copies to a CUDA device."""
        return replace(self, **{f.name: getattr(self, f.name).pin_memory() for f in _tensor_fields(self)})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(getattr(self, f.name).nbytes for f in _tensor_fields(self))


def empty_batch(like: PackedBatch, merge_size: int) -> PackedBatch:
    """A micro-batch without samples: one token without loss, and the smallest image for nobody.

    Args:
        like: gives devices, dtypes and the values of a patch.
        merge_size: patches merged into one token along each spatial axis.
    """
    nothing = {name: getattr(like, name)[:0] for name in _OF_LOSS_TOKENS}
    return PackedBatch(
        input_ids=torch.zeros_like(like.input_ids[:, :1]),
        position_ids=torch.zeros_like(like.position_ids[..., :1]),
        packed_lengths=(1,),
        sequence_groups=(),
        **nothing,
        pixel_values=like.pixel_values.new_zeros(merge_size**2, like.pixel_values.shape[1]),
        unit_grid_thw=like.unit_grid_thw.new_tensor([[1, merge_size, merge_size]]),
        visual_is_video=like.visual_is_video[:0],
        visual_route=None,
    )


_OF_LOSS_TOKENS = ("loss_positions", "targets", "loss_weights", "loss_rows", "loss_places")


def tensor_names(batch: PackedBatch) -> list[str]:
    """Names of the fields that are tensors, in declaration order."""
    return [field.name for field in _tensor_fields(batch)]


def _tensor_fields(batch: PackedBatch) -> list:  # type: ignore[type-arg]
    return [field for field in fields(batch) if isinstance(getattr(batch, field.name), Tensor)]
