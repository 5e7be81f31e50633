"""Contract 3: whatever the plan, the step's loss and gradients are those of one process taking one sample at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.runtime.step_cases import MIXED, Samples, shuffled_plan, visual
from torch.distributed.tensor import DTensor

from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.collate import pack
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.costs import Costs
from trimtab.schema.plans import StepPlan
from trimtab.testing import RankPool

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
NO_VISUALS = ((5, ()), (9, ()), (4, ()), (12, ()))
ONE_VISUAL = ((5, ()), (9, ()), (4, (visual("image", 1, 4, 4),)), (12, ()))


def costs_of(samples: Samples) -> Costs:
    batch = samples.batch
    return Costs(language_ns=batch.tokens * 1000, vision_frame_ns=batch.grid_thw[:, 1] * batch.grid_thw[:, 2] * 300)


def plan_named(name: str, samples: Samples, ranks: int) -> StepPlan:
    if name == "shuffled":
        return shuffled_plan(samples.batch, ranks=ranks, micro_batches=3, seed=ranks)
    strategy, cap = {"on": ("whole-sample", None), "off": ("as-is", None), "capped": ("whole-sample", 40)}[name]
    settings = PlanSettings(strategy=strategy, max_tokens_per_micro_batch=cap)
    return plan_step(samples.batch, costs_of(samples), ranks, settings)


def reference(family: str, cases: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of the unmodified model, one sample at a time."""
    model = tiny_model(family, seed=0, dtype=torch.float64)
    samples = Samples(model, cases)
    total = samples.loss_tokens * len(cases)
    loss_sum = 0.0
    for row in range(len(cases)):
        inputs = samples.stock_inputs(row)
        logits = model(**inputs).logits[0, -samples.loss_tokens - 1 : -1]
        loss = F.cross_entropy(logits, inputs["input_ids"][0, -samples.loss_tokens :], reduction="sum") / total
        loss.backward()
        loss_sum += float(loss.detach())
    return loss_sum, {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def run_planned(
    group: dist.ProcessGroup, family: str, cases: Any, name: str, sharded: bool, frozen_vision: bool
) -> tuple[float, dict[str, np.ndarray]]:
    """The same through the plan on this rank; gradients summed over ranks."""
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=30)
    model = tiny_model(family, seed=0, dtype=torch.float64)
    samples = Samples(model, cases)
    model.model.visual.requires_grad_(not frozen_vision)
    balanced = BalancedVLM(model, group)
    if sharded:
        shard(balanced, ranks.mesh)
    plan = plan_named(name, samples, group.size())
    total, loss_sum = samples.loss_tokens * len(cases), torch.zeros((), dtype=torch.float64)
    for micro_batch in range(plan.micro_batches):
        packed = pack(
            plan, samples.batch, group.rank(), micro_batch, samples.packable(),
            samples.unit_patches(plan, group.rank(), micro_batch), patch_dim=samples.patch_dim, pad_token=0,
        )  # fmt: skip
        loss = step_loss(balanced(packed).loss, packed.loss_weights, total)
        (loss * (gradient_scale(group.size()) if sharded else 1.0)).backward()
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum, group=group)
    return float(loss_sum), dict(gradients(balanced, group, sharded))


def gradients(model: BalancedVLM, group: dist.ProcessGroup, sharded: bool) -> Any:
    for name, parameter in model.model.named_parameters():
        if parameter.grad is None:
            continue
        if isinstance(parameter.grad, DTensor):
            yield name, parameter.grad.full_tensor().numpy()
        else:
            dist.all_reduce(parameter.grad, group=group)
            yield name, parameter.grad.numpy()


def assert_same(found: Any, expected: Any, *, only_language: bool = False) -> None:
    loss, grads = expected
    for rank_loss, rank_grads in found:
        assert rank_loss == pytest.approx(loss, rel=1e-12)
        for name, grad in grads.items():
            if only_language and ".visual." in name:
                assert name not in rank_grads
                continue
            scale = max(np.abs(grad).max(), 1e-3)
            np.testing.assert_allclose(rank_grads[name], grad, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["on", "off", "shuffled", "capped"])
def test_two_sharded_ranks_agree_with_one_process(rank_pool: RankPool, family: str, name: str) -> None:
    found = rank_pool.run(2, run_planned, family, MIXED, name, True, False)
    assert_same(found, reference(family, MIXED))


@pytest.mark.parametrize("name", ["shuffled", *(pytest.param(name, marks=pytest.mark.slow) for name in ("on", "off"))])
def test_four_sharded_ranks_agree_with_one_process(rank_pool: RankPool, name: str) -> None:
    found = rank_pool.run(4, run_planned, "qwen2_5_vl", MIXED, name, True, False)
    assert_same(found, reference("qwen2_5_vl", MIXED))


def test_more_ranks_than_samples(rank_pool: RankPool) -> None:
    found = rank_pool.run(4, run_planned, "qwen2_5_vl", MIXED[:3], "on", True, False)
    assert_same(found, reference("qwen2_5_vl", MIXED[:3]))


@pytest.mark.parametrize("cases", [NO_VISUALS, ONE_VISUAL], ids=["no visual anywhere", "one visual in the step"])
def test_ranks_without_visuals_take_part(rank_pool: RankPool, cases: Any) -> None:
    found = rank_pool.run(2, run_planned, "qwen3_vl", cases, "on", True, False)
    assert_same(found, reference("qwen3_vl", cases))


def test_frozen_vision_tower(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, run_planned, "qwen2_5_vl", MIXED, "shuffled", True, True)
    assert_same(found, reference("qwen2_5_vl", MIXED), only_language=True)


def test_replicated_ranks(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, run_planned, "qwen2_vl", MIXED, "on", False, False)
    assert_same(found, reference("qwen2_vl", MIXED))
