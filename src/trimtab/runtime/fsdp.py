"""Shards a BalancedVLM with FSDP2: every vision and language block, and the wrapper itself as the root."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trimtab.runtime.vlm import BalancedVLM


def shard(model: BalancedVLM, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None) -> BalancedVLM:
    """Shard in place over a one-dimensional mesh (one rank too) and return the model.

    Gradients are averaged over ranks, FSDP's habit; ``loss.gradient_scale`` makes that a sum. The divide and force-sum
    setters are left alone: they act per module, and set on the root only they silently halve the blocks' gradients.

    Args:
        model: the wrapped model on its device.
        mesh: the data-parallel ranks.
        compute_dtype: e.g. bfloat16: computes in it, keeps weights, gradient reduction and optimizer in float32.
    """
    policy = MixedPrecisionPolicy()
    if compute_dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model
