"""Contract 7: replies depend on seed, step, sample and reply, never on ranks, batches or balance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.training.grpo_run import SHORT, grpo_settings, rollout_tokens
from tests.training.small_run import write_run

from trimtab.testing import RankPool
from trimtab.training.settings import BalanceSettings

OFF = BalanceSettings(mode="off", costs="analytic")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("rollout"), photos=False)


@pytest.mark.slow
def test_live_rollouts_are_the_same_on_one_rank_and_two(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "rollout", dtype="float64")
    (one,) = rank_pool.run(1, rollout_tokens, settings, 1)
    assert len(one[0]) == 15
    assert rank_pool.run(2, rollout_tokens, settings, 1) == [one, one]


@pytest.mark.slow
def test_live_rollouts_are_the_same_on_four_ranks_balanced_or_not(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "rollout", dtype="float64")
    (one,) = rank_pool.run(1, rollout_tokens, settings, 2)
    assert len(one) == 2
    assert all(len(step) == 15 for step in one)
    for ranks, changed in ((2, settings), (4, settings), (2, replace(settings, balance=OFF))):
        for found in rank_pool.run(ranks, rollout_tokens, changed, 2):
            assert found == one
    alone = replace(settings, rollout=replace(SHORT, prompts_at_once=1, shared_share=1.0))
    assert rank_pool.run(2, rollout_tokens, alone, 2)[0] == one
