"""PPO mini-batches: each planned on its own."""

import numpy as np
from planning_cases import batch_of, costs_of

from trimtab.planning.ppo_mini_batches import plan_mini_batches
from trimtab.planning.settings import PlanSettings

BATCH = batch_of([1000, 900, 800, 10, 20, 30, 40, 50], [[(2, 8, 8)], *[[] for _ in range(7)]])
MINI_BATCH = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def test_samples_keep_their_mini_batch() -> None:
    plans = plan_mini_batches(BATCH, costs_of(BATCH), 2, PlanSettings(), MINI_BATCH)
    assert [rows.tolist() for rows, _ in plans] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(plan) for _, plan in plans] == [4, 4]


def test_or_are_dealt_anew_where_the_host_allows() -> None:
    plans = plan_mini_batches(BATCH, costs_of(BATCH), 2, PlanSettings(within_step=False), MINI_BATCH)
    assert sorted(np.concatenate([rows for rows, _ in plans]).tolist()) == list(range(8))
    assert [len(rows) for rows, _ in plans] == [4, 4]
    kept = plan_mini_batches(BATCH, costs_of(BATCH), 2, PlanSettings(), MINI_BATCH)
    assert max(plan.step_ns for _, plan in plans) < max(plan.step_ns for _, plan in kept)
