"""Sums gradients that more than one rank holds a part of: over pipelines, and of weights that two stages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from trimtab.runtime.model_layers import ModelLayers
from trimtab.runtime.pipeline_stage import StageModule
from trimtab.schema.stages import StagePlan

BUCKET_BYTES = 1 << 26


def sum_over_pipelines(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Add up the gradients of pipelines that share a step, some at a time; a collective of ``group``.

    Weights that this pipeline did not use count as zero, so that all pipelines send the same.
    """
    if group.size() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (bucket[0].dtype != parameter.dtype or sum(each.nbytes for each in bucket) > BUCKET_BYTES):
            _sum(bucket, group)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        _sum(bucket, group)


def _sum(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, total in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


class TiedWeights:
    """Token embedding and head of a model that ties them, on the two ranks that run them; nothing elsewhere."""

    def __init__(
        self, layers: ModelLayers, plan: StagePlan, mesh: DeviceMesh, stages: Mapping[int, StageModule]
    ) -> None:
        """Make the group of those two ranks in every pipeline; a collective of the mesh."""
        self._weight: nn.Parameter | None = None
        self._group: dist.ProcessGroup | None = None
        head = layers.model.get_output_embeddings()
        tied = head is not None and head.weight is layers.model.get_input_embeddings().weight
        ranks = {_stage_of(plan, layers.vision + 1) % plan.ranks, _stage_of(plan, len(layers) - 1) % plan.ranks}
        if not tied or len(ranks) == 1:
            return
        for pipeline in mesh.mesh.view(-1, plan.ranks):  # every rank takes part in making every group
            made = dist.new_group([int(pipeline[rank]) for rank in sorted(ranks)])
            if dist.get_rank() in pipeline.tolist() and mesh.get_local_rank("pipe") in ranks:
                assert isinstance(made, dist.ProcessGroup)
                self._weight, self._group = head.weight, made

    def sum_gradients(self) -> None:
        """Add up the two gradients of the shared weight."""
        if self._weight is None or self._group is None or not self._weight.requires_grad:
            return
        if self._weight.grad is None:
            self._weight.grad = torch.zeros_like(self._weight)
        dist.all_reduce(self._weight.grad, group=self._group)


def _stage_of(plan: StagePlan, layer: int) -> int:
    """The stage that runs a layer."""
    return next(stage for stage in range(len(plan.bounds) - 1) if layer < plan.bounds[stage + 1])
