"""As few layers recompute as a memory budget allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.runtime.layer_cases import batch_of, loss_of, model_of, peak_of
from tests.runtime.pipeline_cases import mesh_of
from torch.distributed.fsdp import fully_shard

from trimtab.demo.tiny_models import TinyFamily
from trimtab.errors import InfeasibleError
from trimtab.planning.recompute import plan_recompute
from trimtab.runtime.layer_profiling import profile_layers
from trimtab.runtime.model_layers import find_layers
from trimtab.runtime.recompute import recompute_layers, recomputing_layers
from trimtab.runtime.recompute_budget import fit_recompute, summary
from trimtab.testing import RankPool


@pytest.mark.parametrize("family", ["qwen2_5_vl", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5, 0.0])
def test_the_budget_holds_and_the_saving_is_real(family: TinyFamily, share: float) -> None:
    model = model_of(family)
    batch = batch_of(model.config, text=400)
    unlimited = peak_of(model, batch)
    profile = profile_layers(model, [batch], loss_of, repeats=1, optimizer_bytes=0)
    recompute_layers(model, find_layers(model).names)
    least = peak_of(model, batch)
    recompute_layers(model, ())
    least_predicted = plan_least(profile)
    budget = round(least_predicted + share * (1.1 * unlimited - least_predicted))
    plan = fit_recompute(model, [batch], loss_of, budget, optimizer_bytes=0)
    model.train()
    peak = peak_of(model, batch)
    assert recomputing_layers(model) == plan.recomputing
    assert least * 0.95 <= peak <= 1.02 * budget
    assert peak <= 1.05 * plan.peak_bytes
    assert unlimited - peak >= 0.8 * plan.bytes_saved
    assert (len(plan.recomputing) == 0) == (share == 1.0)
    assert f"{len(plan.recomputing)} of 9 layers recompute" in summary(plan)


def plan_least(profile: Any) -> int:
    """The smallest budget, as the error names it."""
    with pytest.raises(InfeasibleError) as raised:
        plan_recompute(profile, 1)
    return int(str(raised.value).split("recomputing every layer takes ")[1].split()[0])


def test_a_budget_too_small_names_the_smallest() -> None:
    model = model_of("qwen2_5_vl")
    batch = batch_of(model.config)
    with pytest.raises(InfeasibleError, match="raise it to"):
        fit_recompute(model, [batch], loss_of, 1000)
    assert recomputing_layers(model) == ()


def fit_on_shards(group: dist.ProcessGroup, share: float) -> tuple[tuple[str, ...], int, float]:
    """Under FSDP2, ranks with batches of their own: what recomputes, the state, and the loss afterwards."""
    model = model_of("qwen2_5_vl")
    mesh = mesh_of(group, 1)["data"]
    for block in [*model.model.visual.blocks, *model.model.language_model.layers]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = batch_of(model.config, side=8, text=60 + 40 * group.rank())
    whole = profile_layers(model, [batch], loss_of, repeats=1)
    budget = int(whole.state_bytes.sum() + share * whole.activation_bytes.sum())
    total = torch.tensor(budget)
    dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
    plan = fit_recompute(model, [batch], loss_of, int(total), group=group)
    loss = loss_of(model, batch)
    loss.backward()
    return plan.recomputing, int(whole.state_bytes.sum()), float(loss)


@pytest.mark.slow
def test_ranks_under_fsdp2_choose_alike(rank_pool: RankPool) -> None:
    (first, state, loss), (second, _, _) = rank_pool.run(2, fit_on_shards, 0.7)
    assert first == second
    assert first
    whole = sum(16 * weight.numel() for weight in model_of("qwen2_5_vl").parameters())
    assert state == pytest.approx(whole / 2, rel=0.02)
    model = model_of("qwen2_5_vl")
    batch = batch_of(model.config, side=8, text=60)
    assert loss == pytest.approx(loss_of(model, batch).item(), rel=1e-5)
