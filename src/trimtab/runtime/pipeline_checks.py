"""Refuses what a pipeline cannot run, before ranks wait for one another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trimtab.errors import SettingsError
from trimtab.runtime.model_layers import ModelLayers
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.stages import StagePlan


def check_mesh(mesh: DeviceMesh) -> None:
    """Check the mesh's dimensions.

    Raises:
        SettingsError: they are others.
    """
    names = mesh.mesh_dim_names
    if names != ("data", "pipe"):
        raise SettingsError(f"the mesh has dimensions {names}; make it with mesh_dim_names=('data', 'pipe')")


def check_model(layers: ModelLayers, plan: StagePlan) -> None:
    """Check that the model is whole, takes packs, and recomputes where the plan says so.

    Raises:
        SettingsError: a weight is sharded, the model's projector lies outside its vision tower, or the plan recomputes
            and the model is in evaluation mode.
    """
    if any(plan.recompute) and not layers.model.training:
        raise SettingsError("the plan recomputes, which only happens in training mode; call model.train() first")
    for name, parameter in layers.model.named_parameters():
        if isinstance(parameter, DTensor):
            raise SettingsError(
                f"weight {name} is sharded (FSDP2 or tensor parallelism); pipelines take whole weights: build the "
                "pipeline from the model as loaded, and share steps between pipelines over the mesh's data dimension"
            )
    if not layers.parts.projector.startswith(layers.parts.tower):
        raise SettingsError(
            f"model type {layers.model.config.model_type} takes no packed micro-batches; pipelines run the Qwen "
            "families (recomputation within a budget works for this one too: fit_recompute)"
        )


def check_plan(plan: StagePlan, layers: ModelLayers, mesh: DeviceMesh) -> None:
    """Check that plan, model and mesh go together.

    Raises:
        SettingsError: names what differs.
    """
    if mesh.size(1) != plan.ranks:
        raise SettingsError(
            f"the mesh has pipelines of {mesh.size(1)} ranks, the plan has {plan.ranks}; make them equal"
        )
    stages, layer_count = len(plan.bounds) - 1, len(layers)
    if plan.bounds[0] != 0 or plan.bounds[-1] != layer_count:
        raise SettingsError(
            f"the plan's stages run layers {plan.bounds[0]} to {plan.bounds[-1]}, the model has {layer_count} "
            f"({layers.vision} vision, projector, {layers.language} language, head); plan with a profile of this model"
        )
    if any(stop <= first for first, stop in zip(plan.bounds, plan.bounds[1:], strict=False)):
        raise SettingsError(f"the plan's bounds {plan.bounds} leave a stage without layers; use fewer stages")
    if stages != plan.ranks * plan.chunks or len(plan.recompute) != stages:
        raise SettingsError(
            f"the plan has {stages} stages and {len(plan.recompute)} lists of recomputed layers for {plan.ranks} ranks "
            f"with {plan.chunks} each; they must agree"
        )
    if plan.schedule == "1f1b" and plan.chunks != 1:
        raise SettingsError(f"schedule 1f1b has one stage a rank, the plan {plan.chunks}; use schedule='interleaved'")


def legal_micro_batches(plan: StagePlan, count: int) -> int:
    """The least number from ``count`` on that torch's schedule takes; what is missing runs empty.

    1F1B wants as many as there are stages; interleaved 1F1B equally many in each round of about as many as ranks.
    """
    if plan.schedule == "1f1b":
        return max(count, plan.ranks)
    while count % max(1, count // plan.ranks):
        count += 1
    return count


def check_micro_batches(batches: Sequence[PackedBatch], data_rank: int) -> None:
    """Check that there are micro-batches, and that each runs within this pipeline.

    Raises:
        SettingsError: names the micro-batch.
    """
    if not batches:
        raise SettingsError("the step has no micro-batches; give at least one")
    for number, batch in enumerate(batches):
        if not isinstance(batch, PackedBatch):
            raise SettingsError(
                f"micro-batch {number} is a {type(batch).__name__}; give PackedBatch, as PipelineCollator makes of a "
                "processor's samples"
            )
        if batch.sequence_groups:
            row = batch.sequence_groups[0].rows[0]
            raise SettingsError(
                f"micro-batch {number}: sample {row} is shared by {batch.sequence_groups[0].degree} ranks; pipelines "
                "run whole samples: plan with max_degree=1"
            )
        _check_route(number, batch, data_rank)


def _check_route(number: int, batch: PackedBatch, data_rank: int) -> None:
    """Vision work must stay in the pipeline that holds its sample."""
    route = batch.visual_route
    if route is None:
        return
    splits = np.array([route.send_splits, route.receive_splits])
    alone = splits.shape[1] == 1  # made for one pipeline, whichever that is
    own = splits if alone else splits[:, data_rank : data_rank + 1]
    if splits.sum() > own.sum():
        raise SettingsError(
            f"micro-batch {number}: the plan moves vision work between pipelines, which encode their own; plan with "
            "balance_vision=False"
        )


def check_denominator(denominator: float | None) -> None:
    """Check what the loss is divided by.

    Raises:
        SettingsError: it is not positive, or not finite.
    """
    if denominator is not None and not 0 < denominator < math.inf:
        raise SettingsError(
            f"denominator={denominator} must be positive: the loss weight of all pipelines' micro-batches"
        )


def contents(batch: PackedBatch) -> tuple[int, int]:
    """What tells micro-batches of one shape apart: their tokens and targets, each by its place."""
    sums = (tensor.flatten() for tensor in (batch.input_ids, batch.targets))
    first, second = (int((values * torch.arange(1, len(values) + 1, device=values.device)).sum()) for values in sums)
    return first, second
