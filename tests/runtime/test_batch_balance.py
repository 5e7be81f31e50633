"""Whatever lies on which rank, balance keeps the step's loss and gradients those of one process, sample by sample."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.runtime.balanced_loop import train_step
from tests.runtime.host_batches import assert_same, reference
from tests.runtime.step_cases import MIXED, visual

from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.testing import RankPool

NO_VISUALS = ((5, ()), (9, ()), (4, ()), (30, ()), (3, ()))
GIANT = ((4, ()), (300, (visual("image", 1, 16, 16),)), (3, ()), (5, ()))
IMAGE_VIDEO_TEXT = (
    (40, (visual("image", 1, 4, 6),)), (5, (visual("image", 1, 2, 2), visual("image", 1, 4, 4))),
    (9, (visual("video", 3, 4, 4),)), (4, (visual("video", 2, 2, 4),)),
    (60, ()), (7, ()),
)  # fmt: skip
EAGER = BalancerSettings(threshold=0)
SPLIT = [[[0, 2, 3], [6, 1]], [[4], [5]]]


@cache
def expected(family: str, cases: Any) -> Any:
    return reference(family, cases)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("form", ["padded", "padded-left", "packed"])
def test_every_form_of_every_family_under_fsdp(rank_pool: RankPool, family: str, form: str) -> None:
    found = rank_pool.run(2, train_step, family, MIXED, SPLIT, form, "fsdp", EAGER)
    assert_same(found, expected(family, MIXED))


def test_replicated_ranks_under_ddp(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, train_step, "qwen2_5_vl", MIXED, [[[0, 2, 3, 6, 1]], [[4, 5]]], "padded", "ddp", EAGER)
    assert_same(found, expected("qwen2_5_vl", MIXED))


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_off_and_observe_change_nothing(rank_pool: RankPool, mode: Any) -> None:
    settings = BalancerSettings(mode=mode)
    found = rank_pool.run(2, train_step, "qwen2_5_vl", MIXED, SPLIT, "padded", "plain", settings)
    assert_same(found, expected("qwen2_5_vl", MIXED))


@pytest.mark.parametrize(
    ("cases", "rows"),
    [
        (MIXED, [[[1, 4]], [[0, 2, 3, 5, 6]]]),
        (NO_VISUALS, [[[0, 1, 2, 3]], [[4]]]),
        (GIANT, [[[0, 1]], [[2, 3]]]),
        (MIXED, [[[3]], [[0, 1, 2, 4, 5, 6]]]),
    ],
    ids=["no image on one rank", "no image anywhere", "one sample above the mean", "three images and a video in one"],
)
def test_uneven_inputs_under_fsdp(rank_pool: RankPool, cases: Any, rows: Any) -> None:
    found = rank_pool.run(2, train_step, "qwen2_5_vl", cases, rows, "packed", "fsdp", EAGER)
    assert_same(found, expected("qwen2_5_vl", cases))


def test_image_only_video_only_and_text_only_ranks(rank_pool: RankPool) -> None:
    rows = [[[0, 1]], [[2, 3]], [[4]], [[5]]]  # with three ranks FSDP2 agrees to float32 only
    found = rank_pool.run(4, train_step, "qwen3_vl", IMAGE_VIDEO_TEXT, rows, "padded", "fsdp", EAGER)
    assert_same(found, expected("qwen3_vl", IMAGE_VIDEO_TEXT))


def test_a_threshold_that_keeps_samples_still_lets_every_rank_encode(rank_pool: RankPool) -> None:
    settings = BalancerSettings(threshold=0.99)
    rows = [[[0, 1]], [[2, 3]], [[4]], [[5]]]
    found = rank_pool.run(4, train_step, "qwen2_5_vl", IMAGE_VIDEO_TEXT, rows, "packed", "fsdp", settings)
    assert_same(found, expected("qwen2_5_vl", IMAGE_VIDEO_TEXT))


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_fewer_samples_than_ranks(rank_pool: RankPool, form: str) -> None:
    """Ranks without data share what the others have, or run a padding sample."""
    settings = BalancerSettings(threshold=0, uneven_ends="share")
    rows: Any = [[[0, 1, 2]], [], [], []]
    found = rank_pool.run(4, train_step, "qwen2_5_vl", MIXED[:3], rows, form, "fsdp", settings)
    assert_same(found, expected("qwen2_5_vl", MIXED[:3]))


def test_one_rank(rank_pool: RankPool) -> None:
    found = rank_pool.run(1, train_step, "qwen2_5_vl", MIXED, [[[0, 2, 3], [6, 1, 4, 5]]], "packed", "plain", EAGER)
    assert_same(found, expected("qwen2_5_vl", MIXED))


def test_later_micro_batches_make_up_for_earlier_ones_where_ranks_meet_once(rank_pool: RankPool) -> None:
    """One rank's first micro-batch outweighs all else, so it may get nothing in the second."""
    plan = PlanSettings(sync="step", balance_vision=False)
    rows = [[[1], [0]], [[2], [3]]]
    settings = BalancerSettings(threshold=0, plan=plan)
    found = rank_pool.run(2, train_step, "qwen2_5_vl", GIANT, rows, "packed", "ddp", settings)
    assert_same(found, expected("qwen2_5_vl", GIANT))


def test_lengths_aligned_for_tensor_and_sequence_parallel_ranks(rank_pool: RankPool) -> None:
    settings = BalancerSettings(threshold=0, pad_to_multiple_of=16)
    found = rank_pool.run(2, train_step, "qwen2_5_vl", MIXED, SPLIT, "packed", "plain", settings)
    assert_same(found, expected("qwen2_5_vl", MIXED))


def test_loongforges_strategy_through_the_same_path(rank_pool: RankPool) -> None:
    settings = BalancerSettings(threshold=0, plan=PlanSettings(strategy="loongforge", balance_vision=False))
    found = rank_pool.run(2, train_step, "qwen2_5_vl", MIXED, SPLIT, "padded", "plain", settings)
    assert_same(found, expected("qwen2_5_vl", MIXED))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_eight_ranks_with_random_samples_and_delays(rank_pool: RankPool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    cases = tuple(random_case(draw) for _ in range(17))
    owner = draw.integers(0, 8, (17, 2))
    rows = [[[i for i in range(17) if owner[i, 0] == r and i % 2 == m] for m in range(2)] for r in range(8)]
    rows = [[each for each in batches if each] for batches in rows]
    delays = {rank: float(draw.random() * 0.3) for rank in range(8)}
    settings = BalancerSettings(threshold=0, uneven_ends="share")
    found = rank_pool.run(8, train_step, "qwen2_5_vl", cases, rows, "packed", "fsdp", settings, delays=delays)
    assert_same(found, expected("qwen2_5_vl", cases))


def random_case(draw: np.random.Generator) -> Any:
    visuals = tuple(
        visual("video", int(draw.integers(1, 4)), 4, 2 * int(draw.integers(1, 3)))
        if draw.random() < 0.4
        else visual("image", 1, 2 * int(draw.integers(1, 5)), 4)
        for _ in range(int(draw.integers(0, 4)))
    )
    return int(draw.integers(3, 50)), visuals
