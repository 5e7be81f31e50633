"""Single-controller loading, the baseline: rank 0 holds every rank's packs and ships their tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trimtab.runtime.packed_batch import PackedBatch, tensor_names

_Header = dict[str, Any]

_PLAIN = ("packed_lengths", "sequence_groups", "visual_route")
"""Fields of a pack that are no tensors."""


def ship(packs: list[list[PackedBatch]] | None, group: dist.ProcessGroup) -> list[PackedBatch]:
    """Hand each rank its packs; a collective of ``group`` (gloo).

    Args:
        packs: on rank 0, one list a rank; elsewhere None.
        group: all ranks.

    Returns:
        This rank's packs.
    """
    rank, ranks = group.rank(), group.size()
    headers = [[_header(pack) for pack in own] for own in packs] if packs is not None else None
    received: list[list[_Header]] = [[]]
    dist.scatter_object_list(received, headers, group=group, group_src=0)
    if packs is None:
        return [_receive(header, group) for header in received[0]]
    for peer in range(1, ranks):
        for pack in packs[peer]:
            for name in tensor_names(pack):
                tensor = getattr(pack, name)
                if tensor.numel():
                    dist.send(_bytes(tensor), group=group, group_dst=peer)
    return packs[rank]


def _header(pack: PackedBatch) -> _Header:
    tensors = {name: (tuple(getattr(pack, name).shape), getattr(pack, name).dtype) for name in tensor_names(pack)}
    return {"tensors": tensors, **{name: getattr(pack, name) for name in _PLAIN}}


def _receive(header: _Header, group: dist.ProcessGroup) -> PackedBatch:
    tensors: dict[str, Any] = {}
    for name, (shape, dtype) in header["tensors"].items():
        tensors[name] = torch.empty(shape, dtype=dtype)
        if tensors[name].numel():
            dist.recv(_bytes(tensors[name]), group=group, group_src=0)
    return PackedBatch(**{name: header[name] for name in _PLAIN}, **tensors)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
