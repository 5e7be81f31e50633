"""Supervised and GRPO runs in which ranks share samples end as those of whole samples do."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.planning.planning_cases import LANGUAGE
from tests.training.grpo_run import grpo_settings, train_on_given_replies, train_with_measured_costs
from tests.training.small_run import (
    packs_take_a_microsecond_a_row,
    steps_of,
    train_on_rank,
    train_within,
    write_run,
)

from trimtab.cost.cluster import Cluster
from trimtab.errors import SettingsError
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.testing import RankPool
from trimtab.training.grpo.settings import ObjectiveSettings
from trimtab.training.sequence_parallel import links_of, sequence_nodes
from trimtab.training.settings import BalanceSettings, EvalSettings, LoraSettings, OptimizerSettings, SFTSettings

WHOLE = BalanceSettings(costs="analytic")
SHARED = BalanceSettings(costs="analytic", max_degree=2, check_order=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("sharded"), photos=False)


def settings_for(files: dict[str, Any], name: str, **changes: Any) -> SFTSettings:
    plain: dict[str, Any] = {"steps": 3, "samples_per_step": 3, "timeout_s": 30, "dtype": "float64", "name": name}
    optimizer = OptimizerSettings(learning_rate=3e-3, warmup_steps=1)
    return SFTSettings(**{**files, **plain, "optimizer": optimizer, "balance": SHARED, **changes})


def copies(step: dict[str, Any]) -> int:
    """Ranks beyond the first that hold some of a sample."""
    return int(sum(step["rank_work"]["samples"]) - step["samples"])


def assert_same_steps(shared: SFTSettings, whole: SFTSettings) -> None:
    assert sum(copies(step) for step in steps_of(shared)) > 0, "no sample was shared"
    for step in (*steps_of(shared), *steps_of(whole)):
        assert sum(step["degrees"].values()) == step["samples"]
        held = sum(int(degree) * count for degree, count in step["degrees"].items())
        assert held == step["samples"] + copies(step)
        assert (step["all_to_all_bytes"] > 0) == (copies(step) > 0)
    for one, other in zip(steps_of(shared), steps_of(whole), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-10)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-9)


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(LoaderSettings(), id="shadow"),
        pytest.param(LoaderSettings(mode="central"), id="central", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_shared_samples_train_as_whole_ones_do(rank_pool: RankPool, files: dict[str, Any], loader: Any) -> None:
    whole = settings_for(files, f"whole-{loader.mode}", balance=WHOLE)
    shared = settings_for(
        files,
        f"shared-{loader.mode}",
        loader=loader,
        recompute=loader.mode == "central",
        evaluation=EvalSettings(data=files["data"], table=files["table"], samples_per_step=5),
    )
    for settings in (whole, shared):
        rank_pool.run(2, train_on_rank, settings, timeout_s=110)
    assert_same_steps(shared, whole)


@pytest.mark.slow
def test_four_ranks_adapters_and_a_frozen_tower_in_several_micro_batches(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    common = {"lora": LoraSettings(rank=2), "freeze_vision": True, "samples_per_step": 6}
    whole = settings_for(files, "whole-lora", balance=WHOLE, **common)
    shared = settings_for(
        files, "shared-lora", balance=replace(SHARED, max_degree=4), max_tokens_per_micro_batch=400, **common
    )
    for settings in (whole, shared):
        rank_pool.run(4, train_on_rank, settings, timeout_s=110)
    assert_same_steps(shared, whole)


@pytest.mark.slow
def test_measured_costs_and_links_plan_shared_samples(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = settings_for(files, "measured", balance=BalanceSettings(max_degree=2))
    rank_pool.run(2, train_on_rank, settings, timeout_s=110)
    assert len(steps_of(settings)) == 3


def said_at_start(group: dist.ProcessGroup, max_degree: int) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        sequence_nodes(
            LANGUAGE, ranks_of_default_group(torch.device("cpu"), timeout_s=30), max_degree=max_degree, timeout_s=30
        )
    return said.getvalue()


def test_a_degree_no_rank_could_have_is_said_once(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(2, said_at_start, 3, timeout_s=60)
    assert first.startswith("balance.max_degree=3: at most 2 ranks will share a sample")
    assert second == ""
    assert rank_pool.run(2, said_at_start, 2, timeout_s=60) == ["", ""]


def links_on_rank(group: dist.ProcessGroup, max_degree: int) -> Cluster:
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=30)
    nodes = sequence_nodes(LANGUAGE, ranks, max_degree=max_degree, timeout_s=30)
    return links_of(nodes, ranks, "measured")


@pytest.mark.parametrize(("world", "max_degree"), [(3, 2), (5, 4)])
def test_ranks_left_over_by_the_largest_groups_know_the_same_links(
    rank_pool: RankPool, world: int, max_degree: int
) -> None:
    first, *others = rank_pool.run(world, links_on_rank, max_degree, timeout_s=60)
    assert first.name == "measured"
    assert 0 < first.node.all_to_all < float("inf")
    assert all(other == first for other in others)


@pytest.mark.slow
def test_measured_costs_share_samples_among_ranks_the_largest_groups_leave_over(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    settings = settings_for(files, "uneven", steps=1, balance=replace(SHARED, costs="measured"))
    rank_pool.run(3, train_within, settings, packs_take_a_microsecond_a_row, timeout_s=110)
    assert len(steps_of(settings)) == 1


@pytest.mark.slow
def test_replies_are_shared_among_ranks_the_largest_groups_leave_over(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    settings = grpo_settings(files, "grpo-uneven", steps=1, balance=replace(SHARED, costs="measured"))
    rank_pool.run(3, train_with_measured_costs, settings, timeout_s=110)
    [step] = steps_of(settings)
    held = sum(int(degree) * count for degree, count in step["degrees"].items())
    assert held == sum(step["rank_work"]["samples"]) >= step["replies"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_shared_replies_are_learned_from_as_whole_ones_are(
    rank_pool: RankPool, files: dict[str, Any], aggregation: Any
) -> None:
    objective = ObjectiveSettings(mini_batches=2, kl_coefficient=0.05, aggregation=aggregation)
    whole = grpo_settings(files, f"grpo-{aggregation}", steps=2, dtype="float64", objective=objective, balance=WHOLE)
    (start, one), _ = rank_pool.run(2, train_on_given_replies, whole, timeout_s=110)
    (_, shared), _ = rank_pool.run(2, train_on_given_replies, replace(whole, balance=SHARED), timeout_s=110)
    for name, weights in one.items():
        np.testing.assert_allclose(shared[name], weights, rtol=0, atol=1e-9, err_msg=name)
    assert max(np.abs(one[name] - start[name]).max() for name in one) > 1e-4


def test_settings_that_exclude_sharing_are_refused(files: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"balance.max_degree=0 must be at least 1"):
        BalanceSettings(max_degree=0)
    with pytest.raises(SettingsError, match=r"needs balance\.sync=layer"):
        BalanceSettings(max_degree=2, sync="step")
    with pytest.raises(SettingsError, match="does not apply to packs"):
        settings_for(files, "packs", packing=PackingSettings(method="best"))
