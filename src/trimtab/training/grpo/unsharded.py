"""The language model gathered on every rank, for as long as replies are generated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from trimtab.errors import TrainingError
from trimtab.runtime.attention import stock_attention
from trimtab.runtime.vlm import BalancedVLM

_MEMORY = Path("/proc/meminfo")


@contextmanager
def unsharded(model: BalancedVLM, group: dist.ProcessGroup) -> Iterator[None]:
    """Gather the language blocks and the root once, so that generating a token needs no other rank.

    ``encode_visuals`` must have run before, in the same phase: it initialises FSDP with the wrapper as its root. Both
    ends are collectives. Inside, the language model attends by its stock attention.

    Raises:
        TrainingError: the whole model does not fit beside what the device holds; raised on every rank.
    """
    core: Any = model.base.model
    layers = [layer for layer in core.language_model.layers if isinstance(layer, FSDPModule)]
    check_room(model, group)
    for layer in layers:
        layer.set_reshard_after_forward(False, recurse=False)
        layer.unshard()
    if isinstance(model, FSDPModule):
        model.unshard()
    model.eval()
    try:
        with stock_attention(model.base):
            yield
    finally:
        model.train()
        for layer in layers:
            layer.reshard()
            layer.set_reshard_after_forward(True, recurse=False)
        if isinstance(model, FSDPModule):
            model.reshard()


def check_room(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Check on every rank that the whole model fits; a collective of ``group`` (gloo).

    Raises:
        TrainingError: it does not on some rank; names that rank.
    """
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    room = torch.tensor([_free_bytes(next(model.parameters()).device)], dtype=torch.int64)
    rooms = [torch.zeros_like(room) for _ in range(group.size())]
    dist.all_gather(rooms, room, group=group)
    free, rank = min((int(room), rank) for rank, room in enumerate(rooms))
    if free < needed:
        raise TrainingError(
            f"rank {rank} has {free >> 20} MiB free, but rollout.engine=transformers gathers the whole model on every "
            f"device ({needed >> 20} MiB); use rollout.engine=server for a model larger than one device"
        )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if _MEMORY.is_file():  # Linux counts what it can take back from caches
        lines = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
