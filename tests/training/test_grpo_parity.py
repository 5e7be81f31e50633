"""Contract 3 for GRPO: with given replies, balance changes no weight after many updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.training.grpo_run import grpo_settings, train_on_given_replies
from tests.training.small_run import write_run

from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.grpo.settings import ObjectiveSettings
from trimtab.training.settings import BalanceSettings

OFF, CENTRAL = BalanceSettings(mode="off", costs="analytic"), LoaderSettings(mode="central")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("parity"), photos=False)


def assert_equal_weights(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_updates_end_with_the_same_weights_balanced_or_not(rank_pool: RankPool, files: dict[str, Any]) -> None:
    """5 steps of 2 mini-batches and 2 epochs, with a reference, over several micro-batches where balanced."""
    objective = ObjectiveSettings(mini_batches=2, epochs=2, kl_coefficient=0.05)
    balanced = grpo_settings(
        files, "parity", steps=5, dtype="float64", objective=objective, max_tokens_per_micro_batch=400
    )
    baseline = replace(balanced, balance=OFF, loader=CENTRAL, max_tokens_per_micro_batch=None)
    (start, on), _ = rank_pool.run(2, train_on_given_replies, balanced)
    (_, off), _ = rank_pool.run(2, train_on_given_replies, baseline)
    assert_equal_weights(on, off)
    assert max(np.abs(on[name] - start[name]).max() for name in on) > 1e-3


@pytest.mark.parametrize(
    ("aggregation", "ranks"),
    [
        pytest.param("seq-mean-token-mean", 2, marks=pytest.mark.slow),
        pytest.param("seq-mean-token-mean", 4, marks=pytest.mark.slow),
        pytest.param("seq-mean-token-sum", 4, marks=pytest.mark.slow),
    ],
)
def test_sequence_aggregations_agree_on_one_and_more_ranks(
    rank_pool: RankPool, files: dict[str, Any], aggregation: Any, ranks: int
) -> None:
    settings = grpo_settings(
        files, aggregation, steps=2, dtype="float64", objective=ObjectiveSettings(aggregation=aggregation)
    )
    ((_, one),) = rank_pool.run(1, train_on_given_replies, settings)
    (_, more), *_ = rank_pool.run(ranks, train_on_given_replies, settings)
    assert_equal_weights(more, one)
