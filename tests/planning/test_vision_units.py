"""Vision units: images and runs of frames over ranks, each encoded once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import batch_of, batches, costs_of

from trimtab.planning.bounds import bin_bound
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.vision import balanced_units, encodings, even_level
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def test_a_long_video_is_cut_into_runs_of_frames() -> None:
    batch = batch_of([0, 0, 0, 0], [[(40, 8, 8)], [], [], []])
    plan = plan_step(batch, costs_of(batch), 4, PlanSettings())
    assert (plan.units.frame_stop - plan.units.frame_start).tolist() == [10, 10, 10, 10]
    assert sorted(plan.units.rank.tolist()) == [0, 1, 2, 3]
    assert plan.units.frame_start.tolist() == [0, 10, 20, 30]


def test_a_rank_keeps_its_own_visuals_up_to_the_mean() -> None:
    batch = batch_of([100, 100], [[(1, 8, 8)] * 6, [(1, 8, 8)] * 2])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings())
    owner = plan.rank[batch.sample_of_visual[plan.units.visual]]
    assert (plan.units.rank == owner).sum() == 6
    assert plan.vision_ns.max() == plan.vision_ns.min()


def test_an_image_is_never_cut() -> None:
    batch = batch_of([0, 0], [[(1, 40, 40)], []])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings())
    assert len(plan.units) == 1


def test_vision_fills_the_ranks_language_leaves_idle() -> None:
    """Over the step vision and language add, so the rank with the long text encodes nothing."""
    batch = batch_of([3000, 10], [[(8, 8, 8)], []])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(sync="step"))
    assert (plan.units.rank != plan.rank[0]).all()


def test_frames_that_cost_nothing_stay_where_they_are() -> None:
    batch = batch_of([0, 0], [[(4, 8, 8), (3, 4, 4)], []])
    costs = Costs(language_ns=np.array([1, 1]), vision_frame_ns=np.array([10, 0]))
    plan = plan_step(batch, costs, 2, PlanSettings())
    assert plan.vision_ns.tolist() == [[20, 20]]
    free = plan.units.visual == 1
    assert plan.units.rank[free].tolist() == [plan.rank[0]]


def test_replies_share_one_encoding() -> None:
    batch = batch_of([10, 20], [[(4, 8, 8)], [(1, 4, 4)]]).take([0, 0, 0, 1])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings())
    frames = np.bincount(batch.visual_keys[plan.units.visual], weights=plan.units.frame_stop - plan.units.frame_start)
    assert frames.tolist() == [4, 1]


@given(total=st.integers(0, 10**6), base=st.lists(st.integers(0, 10**5), min_size=1, max_size=9))
def test_even_level_is_where_water_would_stand(total: int, base: list[int]) -> None:
    level = even_level(total, np.array(base))
    filled = sum(max(0, level - value) for value in base)
    below = sum(max(0, level - 1 - value) for value in base)
    assert below < max(total, 1) <= max(filled, 1)


@given(batch=batches(), ranks=st.integers(1, 6))
def test_spread_is_within_one_frame_of_the_bound(batch: BatchMetadata, ranks: int) -> None:
    zeros = np.zeros(len(batch), dtype=np.int64)
    frame_ns = costs_of(batch).vision_frame_ns
    work = encodings(batch, frame_ns, np.arange(len(batch)) % ranks, zeros)
    units = balanced_units(work, np.zeros((1, ranks), dtype=np.int64))
    load = np.zeros(ranks, dtype=np.int64)
    np.add.at(load, units.rank, frame_ns[units.visual] * (units.frame_stop - units.frame_start))
    bound = bin_bound(np.repeat(work.frame_ns, work.frames), ranks)
    assert bound <= load.max(initial=0) <= bound + frame_ns.max(initial=0)
