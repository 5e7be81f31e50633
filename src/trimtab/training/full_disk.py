"""What is told where a disk did not take a checkpoint."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trimtab.runtime.memory_meter import local_tensor

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_TORCH = ("PytorchStreamWriter failed writing file", "unexpected pos")
_MIB = 2**20


def cut_short(error: BaseException) -> str | None:
    """How a write ended that stopped midway, or None where something else went wrong.

    Torch's own writer says only that, and where; a full disk is the common cause.
    """
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return error.strerror or "no space is left"
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OF_TORCH):
        return "the disk took only part of it"
    return None


def bytes_to_write(state: Any, *, is_first: bool) -> int:
    """Bytes of tensors this rank writes: its shards, and on the first rank what is not sharded."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    own = [(tensor, local_tensor(tensor)) for tensor in tensors]
    return sum(local.nbytes for tensor, local in own if is_first or local is not tensor)


def space_told(folder: Path, needed: int) -> str:
    """The room there is now, and the room the checkpoint takes."""
    try:
        free = f"{shutil.disk_usage(folder).free / _MIB:,.1f} MiB"
    except OSError:
        free = "too little"
    return f"{folder} has {free} free, the checkpoint takes more than {needed / _MIB:,.1f} MiB"
