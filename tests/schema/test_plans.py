"""Step plans: who runs what, and a digest that moves with every part of it."""

from dataclasses import replace

import numpy as np
import pytest

from trimtab.schema.plans import StepPlan, VisionUnits

UNITS = VisionUnits(
    visual=np.array([0, 0, 1]),
    frame_start=np.array([0, 2, 0]),
    frame_stop=np.array([2, 4, 1]),
    rank=np.array([0, 1, 1]),
    micro_batch=np.array([0, 0, 0]),
)
PLAN = StepPlan(
    ranks=2,
    micro_batches=1,
    rank=np.array([1, 0, 1]),
    degree=np.ones(3, dtype=np.int64),
    micro_batch=np.zeros(3, dtype=np.int64),
    units=UNITS,
    language_ns=np.array([[5, 7]]),
    vision_ns=np.array([[1, 2]]),
    step_ns=9,
    current_step_ns=12,
    lower_bound_ns=8,
    sync="layer",
    denominators={"tokens": 30, "sequences": 3},
)


def test_rows_and_unit_rows_are_in_batch_order() -> None:
    assert PLAN.rows(1, 0).tolist() == [0, 2]
    assert PLAN.unit_rows(1, 0).tolist() == [1, 2]
    assert PLAN.rows(1, 1).tolist() == []


def test_equal_plans_have_equal_digests() -> None:
    assert PLAN.digest() == replace(PLAN, rank=PLAN.rank.copy()).digest()
    assert len(PLAN.digest()) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"rank": np.array([1, 1, 0])},
        {"micro_batch": np.array([0, 0, 1])},
        {"units": replace(UNITS, rank=np.array([1, 0, 1]))},
        {"denominators": {"tokens": 31, "sequences": 3}},
        {"sync": "step"},
    ],
)
def test_any_difference_shows_in_the_digest(change: dict[str, object]) -> None:
    assert replace(PLAN, **change).digest() != PLAN.digest()
