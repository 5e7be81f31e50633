"""AdamW, its learning rate as a function of the step, and a step that all ranks take or skip together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trimtab.training.settings import OptimizerSettings


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; weight decay on matrices only."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)


def learning_rate(step: int, steps: int, settings: OptimizerSettings) -> float:
    """Linear warm-up, then half a cosine down to ``final_share`` of the peak at the last step."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, steps - 1 - settings.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return settings.learning_rate * (settings.final_share + (1.0 - settings.final_share) * cosine)


def take_step(optimizer: torch.optim.Optimizer, rate: float, max_grad_norm: float) -> float | None:
    """Clip by the global norm and update; a non-finite norm on any rank skips the update on all.

    Returns:
        The norm before clipping, or None where the step was skipped. The norm is reduced over ranks, so all ranks
        see the same value and decide alike.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = _scalar(nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    finite = math.isfinite(norm)
    if finite:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm if finite else None


def skip_step(optimizer: torch.optim.Optimizer) -> None:
    """Forget the gradients of a step without a token in its loss: momentum and decay move nothing either."""
    optimizer.zero_grad(set_to_none=True)


def _scalar(norm: Tensor) -> float:
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
