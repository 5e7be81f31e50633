"""A host's loop on one rank: collate, balance, forward, backward; FSDP2, DDP or plain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.runtime.host_batches import HostData
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

EAGER = BalancerSettings(threshold=0)
Rows = Sequence[Sequence[Sequence[int]]]
"""[rank][micro-batch][sample]."""


def costs_of(batch: BatchMetadata) -> Costs:
    return Costs(language_ns=batch.tokens * 1000, vision_frame_ns=batch.grid_thw[:, 1] * batch.grid_thw[:, 2] * 300)


def balancer_of(data: HostData, group: dist.ProcessGroup, settings: Any = EAGER, **more: Any) -> BatchBalancer:
    return BatchBalancer.for_model(data.model.config, group, settings, **{"cost_model": costs_of, **more})


def wrapped(model: Any, host: str, size: int) -> Any:
    if host == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
        for block in [*model.model.visual.blocks, *model.model.language_model.layers]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    return DistributedDataParallel(model, find_unused_parameters=True) if host == "ddp" else model


def forward_loss(model: Any, batch: dict[str, Any], denominator: float, form: str) -> torch.Tensor:
    inputs = {key: value for key, value in batch.items() if key not in ("cu_seqlens", "max_seqlen")}
    if "second_per_grid_ts" in inputs:
        inputs["second_per_grid_ts"] = torch.as_tensor(inputs["second_per_grid_ts"])
    if form == "packed":
        lengths = np.diff(batch["cu_seqlens"].numpy()).tolist()
        lengths += [left] if (left := batch["input_ids"].shape[1] - sum(lengths)) else []
        inputs["packed_lengths"] = tuple(lengths)
    targets = inputs.pop("labels")[:, 1:].flatten()
    logits = model(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)  # the model's own loss is in float32
    return F.cross_entropy(logits, targets, reduction="sum") / max(denominator, 1)


def train_step(
    group: dist.ProcessGroup,
    family: str,
    cases: Any,
    rows: Rows,
    form: str = "padded",
    host: str = "plain",
    settings: BalancerSettings | None = None,
    delay_s: float = 0.0,
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients, summed over ranks, of one optimizer step whose samples lie on ranks as ``rows`` says."""
    data = HostData(family, cases)
    if form == "packed":
        use_packed_attention(data.model)
    balancer = BatchBalancer.for_model(data.model.config, group, settings, cost_model=costs_of)
    model = wrapped(data.model, host, group.size())
    mine = rows[group.rank()]
    batches = [collate(data, each, form) for each in mine]
    loss_sum = torch.zeros((), dtype=torch.float64)
    for step in balancer.steps(batches, micro_batches=max(map(len, rows))):
        for batch in step.micro_batches:
            loss = forward_loss(model, batch, step.denominator, form)
            (loss * (group.size() if host != "plain" else 1.0)).backward()
            loss_sum += loss.detach()
    dist.all_reduce(loss_sum, group=group)
    return float(loss_sum), dict(gradients(data.model, group, host))


def collate(data: HostData, rows: Sequence[int], form: str) -> dict[str, Any]:
    if form == "packed":
        return data.packed(rows)
    return data.padded(rows, side="left" if form == "padded-left" else "right")


def gradients(model: Any, group: dist.ProcessGroup, host: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if host == "plain":
            grad = torch.zeros_like(parameter) if grad is None else grad
            dist.all_reduce(grad, group=group)
        if grad is not None:
            yield name, (grad.full_tensor() if isinstance(grad, DTensor) else grad).numpy()
