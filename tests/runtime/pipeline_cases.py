"""Plans, micro-batches and runs of pipelines for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.runtime.step_cases import MIXED, Samples
from tests.runtime.test_placement_keeps_loss import costs_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.collate import pack
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.pipeline import PipelinedVLM
from trimtab.schema.stages import StagePlan


@dataclass(frozen=True, kw_only=True)
class Run:
    """One step of a pipeline: what is cut where."""

    family: str = "qwen2_5_vl"
    bounds: tuple[int, ...]
    ranks: int
    chunks: int = 1
    recompute: bool = False
    max_tokens: int = 38
    cases: Any = MIXED
    frozen_vision: bool = False
    tied: bool = False

    def plan(self) -> StagePlan:
        stages = list(zip(self.bounds, self.bounds[1:], strict=False))
        layers = tuple(tuple(range(first, stop)) if self.recompute else () for first, stop in stages)
        return StagePlan(
            method="test",
            schedule="1f1b" if self.chunks == 1 else "interleaved",
            ranks=self.ranks,
            chunks=self.chunks,
            micro_batches=1,
            bounds=self.bounds,
            recompute=layers,
            in_flight=(1,) * len(stages),
            forward_ns=(1,) * len(stages),
            backward_ns=(1,) * len(stages),
            send_ns=(0,) * (len(stages) - 1),
            step_ns=1,
            lower_bound_ns=1,
            memory=(),
            memory_bytes=0,
        )

    def model(self) -> Any:
        model: Any = tiny_model(self.family, seed=0, dtype=torch.float64).train()  # type: ignore[arg-type]
        model.model.visual.requires_grad_(not self.frozen_vision)
        if self.tied:
            model.lm_head.weight = model.model.language_model.embed_tokens.weight
        return model


def mesh_of(group: dist.ProcessGroup, ranks: int) -> DeviceMesh:
    return init_device_mesh("cpu", (group.size() // ranks, ranks), mesh_dim_names=("data", "pipe"))


def micro_batches(
    model: Any, cases: Any, data_ranks: int, data_rank: int, max_tokens: int, *, balance_vision: bool = False
) -> list[PackedBatch]:
    """The packs of one pipeline in a step of all samples."""
    samples = Samples(model, cases)
    settings = PlanSettings(
        strategy="whole-sample",
        sync="micro_batch",
        balance_vision=balance_vision,
        max_tokens_per_micro_batch=max_tokens,
    )
    plan = plan_step(samples.batch, costs_of(samples), data_ranks, settings)
    return [
        pack(
            plan, samples.batch, data_rank, number, samples.packable(), samples.unit_patches(plan, data_rank, number),
            patch_dim=samples.patch_dim, pad_token=0,
        )
        for number in range(plan.micro_batches)
    ]  # fmt: skip


def run_step(group: dist.ProcessGroup, run: Run) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and this rank's gradients of one step."""
    model, mesh = run.model(), mesh_of(group, run.ranks)
    batches = micro_batches(model, run.cases, mesh.size(0), mesh.get_local_rank("data"), run.max_tokens)
    pipeline = PipelinedVLM(model, run.plan(), mesh)
    del model
    loss = pipeline.step(batches).loss
    return loss, {name: weight.grad.numpy() for name, weight in pipeline.named_parameters() if weight.grad is not None}
