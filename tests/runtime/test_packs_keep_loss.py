"""Packed equals unpacked: loss and gradients of packs are those of one process taking one sample at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.step_cases import MIXED, Samples
from tests.runtime.test_placement_keeps_loss import FAMILIES, assert_same, costs_of, gradients, reference

from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.collate import pack
from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.sample_loads import SampleLoads
from trimtab.planning.packing.settings import PackMethod, PackSettings
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.plans import StepPlan
from trimtab.testing import RankPool


def plan_of_packs(samples: Samples, ranks: int, method: PackMethod, strategy: str) -> StepPlan:
    """One step that is an epoch: all samples in packs of at most 40 tokens, as many micro-batches as they need."""
    problem = SampleLoads.from_batch(samples.batch, costs_of(samples)).problem(patches=None, tokens=40)
    settings = PackSettings(method=method)
    packs = PackSampler(problem, ranks=1, seed=0, settings=settings).steps_per_epoch
    assert ranks < packs < len(samples.batch)
    sampler = PackSampler(problem, ranks=ranks, micro_batches=-(-packs // ranks), seed=0, settings=settings)
    assert sampler.steps_per_epoch == 1
    pack_of = np.empty(len(samples.batch), dtype=np.int64)
    pack_of[sampler.rows(0)] = sampler.pack_of(0)
    return plan_step(samples.batch, costs_of(samples), ranks, PlanSettings(strategy=strategy), pack_of=pack_of)


def packed(samples: Samples, plan: StepPlan, rank: int, micro_batch: int) -> PackedBatch:
    return pack(
        plan,
        samples.batch,
        rank,
        micro_batch,
        samples.packable(),
        samples.unit_patches(plan, rank, micro_batch),
        patch_dim=samples.patch_dim,
        pad_token=0,
    )


def run_packed(
    group: dist.ProcessGroup, family: str, method: PackMethod, strategy: str
) -> tuple[float, dict[str, np.ndarray]]:
    """A step of packs on this rank; gradients summed over ranks."""
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=30)
    model = tiny_model(family, seed=0, dtype=torch.float64)  # type: ignore[arg-type]
    samples = Samples(model, MIXED)
    balanced = shard(BalancedVLM(model, group), ranks.mesh)
    plan = plan_of_packs(samples, group.size(), method, strategy)
    total, loss_sum = samples.loss_tokens * len(MIXED), torch.zeros((), dtype=torch.float64)
    for micro_batch in range(plan.micro_batches):
        batch = packed(samples, plan, group.rank(), micro_batch)
        loss = step_loss(balanced(batch).loss, batch.loss_weights, total)
        (loss * gradient_scale(group.size())).backward()
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum, group=group)
    return float(loss_sum), dict(gradients(balanced, group, sharded=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_packs_of_images_videos_and_text_agree_with_one_process(rank_pool: RankPool, family: str) -> None:
    assert_same(rank_pool.run(2, run_packed, family, "best", "whole-sample"), reference(family, MIXED))


@pytest.mark.parametrize("method", ["best", "isf"])
def test_packs_where_they_were_dealt_agree_with_one_process(rank_pool: RankPool, method: PackMethod) -> None:
    found = rank_pool.run(2, run_packed, "qwen2_5_vl", method, "as-is")
    assert_same(found, reference("qwen2_5_vl", MIXED))


def token_losses(group: dist.ProcessGroup, family: str, changed: int | None) -> dict[int, list[float]]:
    """Losses of each sample's tokens, one sample's text changed."""
    model = tiny_model(family, seed=0, dtype=torch.float64)  # type: ignore[arg-type]
    samples = Samples(model, MIXED)
    if changed is not None:
        samples.tokens[changed][-3:] = (samples.tokens[changed][-3:] - 2) % 80 + 3
    plan = plan_of_packs(samples, 1, "best", "whole-sample")
    balanced, losses = BalancedVLM(model, group), {}
    for micro_batch in range(plan.micro_batches):
        batch = packed(samples, plan, 0, micro_batch)
        found = balanced(batch).loss.detach()
        for row in batch.loss_rows.unique().tolist():
            losses[row] = found[batch.loss_rows == row].tolist()
    return losses


@pytest.mark.parametrize("changed", [0, 3, 4])
def test_samples_of_a_pack_never_see_each_other(rank_pool: RankPool, changed: int) -> None:
    (before,), (after,) = (rank_pool.run(1, token_losses, "qwen2_5_vl", row) for row in (None, changed))
    assert len(before) == len(MIXED)
    differing = {row for row in before if before[row] != after[row]}
    assert differing == {changed}
