"""A step with balance off: the host's micro-batches untouched, and denominators for those who ask."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.families.batch_layout import IGNORED_LABEL
from trimtab.runtime.balanced_step import BalancedStep
from trimtab.runtime.host_batch import HostBatch
from trimtab.runtime.step_metadata import wire_device


def unbalanced_step(index: int, batches: list[HostBatch], host_state: Any, group: dist.ProcessGroup) -> BalancedStep:
    """The host's own micro-batches; a collective only when the denominator is first asked for."""
    weights = [_loss_weights(batch) for batch in batches]

    def totals() -> tuple[float, int]:
        mine = torch.zeros(2, dtype=torch.float64, device=wire_device(group))
        for each in weights:
            if each is not None:
                mine += torch.stack([each.sum(dtype=torch.float64), (each.sum(dim=-1) > 0).sum().double()]).to(mine)
        dist.all_reduce(mine, group=group)
        return float(mine[0]), int(mine[1])

    sums = [0.0 if each is None else float(each.sum(dtype=torch.float64)) for each in weights]
    return BalancedStep(
        index=index,
        micro_batches=batches,
        loss_weights=sums,
        totals=totals,
        ranks=group.size(),
        host_state=host_state,
    )


def _loss_weights(batch: HostBatch) -> Tensor | None:
    """[B, L - 1], weight of predicting each token after the first of a row."""
    labels: Tensor | None = batch.get("labels")
    for key in ("loss_weights", "loss_mask"):
        if batch.get(key) is not None:
            weights: Tensor = batch[key][..., 1:].double()
            return weights if labels is None else weights * (labels[..., 1:] != IGNORED_LABEL)
    return None if labels is None else (labels[..., 1:] != IGNORED_LABEL).double()
