"""The update: schedule, clipping, and skipping together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from trimtab.runtime.groups import ranks_of_default_group
from trimtab.testing import RankPool
from trimtab.training.optimizer import learning_rate, make_optimizer, take_step
from trimtab.training.settings import OptimizerSettings

SETTINGS = OptimizerSettings(learning_rate=0.1, warmup_steps=4, final_share=0.2, weight_decay=0.5)


def test_the_rate_rises_to_its_peak_and_falls_to_its_share() -> None:
    rates = [learning_rate(step, 20, SETTINGS) for step in range(20)]
    assert rates[0] == pytest.approx(0.025)
    assert rates[3] == rates[4] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.02)
    assert all(later <= earlier for earlier, later in pairwise(rates[4:]))


def test_only_matrices_decay() -> None:
    decays = {
        group["params"][0].dim(): group["weight_decay"]
        for group in make_optimizer(nn.Linear(3, 2), SETTINGS).param_groups
    }
    assert decays == {2: 0.5, 1: 0.0}


def step_with_gradient(group: dist.ProcessGroup, bad_rank: int | None) -> tuple[float | None, bool]:
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=30)
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=ranks.mesh)
    before = [p.to_local().clone() for p in model.parameters()]  # type: ignore[attr-defined]
    value = float("nan") if group.rank() == bad_rank else 1.0
    (model(torch.ones(2, 4)) * value).sum().backward()
    optimizer = make_optimizer(model, SETTINGS)
    norm = take_step(optimizer, 0.1, 1.0)
    after = [p.to_local() for p in model.parameters()]  # type: ignore[attr-defined]
    assert all(p.grad is None for p in model.parameters())
    return norm, all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(rank_pool: RankPool) -> None:
    assert rank_pool.run(2, step_with_gradient, 1) == [(None, True), (None, True)]


def test_a_finite_gradient_updates_every_rank(rank_pool: RankPool) -> None:
    (first, kept), (second, kept_too) = rank_pool.run(2, step_with_gradient, None)
    assert first == second
    assert first is not None
    assert not kept
    assert not kept_too
