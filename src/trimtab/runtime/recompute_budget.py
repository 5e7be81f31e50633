"""Adaptive recomputation without pipelines: measures layers, and recomputes as few as a memory budget allows."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from trimtab.planning.recompute import plan_recompute
from trimtab.runtime.layer_profiling import Batch, LossOf, largest_over_ranks, profile_layers
from trimtab.runtime.recompute import recompute_layers
from trimtab.schema.stages import RecomputePlan

_GB = 1e9


def fit_recompute(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_of: LossOf[Batch],
    memory_bytes: int,
    *,
    state_bytes: int | None = None,
    in_flight: int = 1,
    optimizer_bytes: float = 8.0,
    group: dist.ProcessGroup | None = None,
) -> RecomputePlan:
    """Measure a model's layers, choose those that must recompute for a budget to hold, and set the model so.

    For training without pipelines: FSDP2, DDP or one device. Call it before the first step, in training mode, after
    sharding if there is any. Gradients are dropped. ``summary`` says what the choice saves.

    Args:
        model: a Transformers VLM, or one in PEFT, BalancedVLM or FSDP2.
        batches: micro-batches as large as any will be; bytes are of the largest.
        loss_of: ``(model, batch)`` -> scalar loss, as in training.
        memory_bytes: budget of one device.
        state_bytes: what weights, gradients, optimizer and gathered layers take; default: counted from the model.
        in_flight: micro-batches whose activations are held at a time.
        optimizer_bytes: of optimizer state, for each trained parameter (AdamW in float32: 8).
        group: ranks that train together. They then decide alike, by the largest of their figures; a collective.

    Raises:
        UnknownModelError: the model's layers cannot be found, or do not recompute.
        SettingsError: there are no batches, or the model is in evaluation mode.
        InfeasibleError: recomputing every layer is not enough; tells the smallest budget that is.
    """
    profile = profile_layers(model, batches, loss_of, optimizer_bytes=optimizer_bytes)
    if group is not None:
        profile = largest_over_ranks(profile, group)
    plan = plan_recompute(profile, memory_bytes, state_bytes=state_bytes, in_flight=in_flight)
    recompute_layers(model, plan.recomputing)
    return plan


def summary(plan: RecomputePlan) -> str:
    """One line: how many layers recompute, what that takes and what it saves."""
    return (
        f"{len(plan.recomputing)} of {len(plan.names)} layers recompute: {plan.peak_bytes / _GB:.3g} of "
        f"{plan.budget_bytes / _GB:.3g} GB, {plan.bytes_saved / _GB:.3g} GB less than without recomputation, "
        f"{plan.time_saved_ns / 1e6:.3g} ms a micro-batch faster than recomputing every layer"
    )
