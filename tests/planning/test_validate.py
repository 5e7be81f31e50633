"""The validator finds every kind of broken plan."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from planning_cases import batch_of, costs_of

from trimtab.errors import InvalidPlanError
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.validate import validate_plan
from trimtab.schema.plans import StepPlan

BATCH = batch_of([100, 200, 300, 400], [[(6, 8, 8)], [], [(1, 4, 4)], []])
COSTS = costs_of(BATCH)
SETTINGS = PlanSettings(max_tokens_per_micro_batch=700)
PLAN = plan_step(BATCH, COSTS, 2, SETTINGS)


def with_units(plan: StepPlan, **columns: list[int]) -> StepPlan:
    return replace(plan, units=replace(plan.units, **{name: np.array(values) for name, values in columns.items()}))


BREAKAGES: dict[str, tuple[Callable[[StepPlan], StepPlan], str]] = {
    "a rank too many": (lambda p: replace(p, rank=p.rank + 1), r"rank=2 is not below 2"),
    "a sample too few": (lambda p: replace(p, rank=p.rank[1:]), r"entries for 4 samples"),
    "a cap broken": (lambda p: replace(p, rank=np.zeros(4, dtype=np.int64)), r"exceed max_tokens_per_micro_batch=700"),
    "a frame twice": (lambda p: with_units(p, frame_start=[0, *p.units.frame_start[1:] * 0]), r"does not follow frame"),
    "a frame missing": (lambda p: with_units(p, frame_stop=p.units.frame_stop - 1), r"frames are encoded|not follow"),
    "a unit elsewhere": (lambda p: with_units(p, rank=p.units.rank + 2), r"of 2"),
    "a load misstated": (lambda p: replace(p, language_ns=p.language_ns + 1), r"language_ns does not match"),
    "a bound above": (lambda p: replace(p, lower_bound_ns=p.step_ns + 1), r"below its lower bound"),
}


def test_the_plan_itself_is_valid() -> None:
    validate_plan(PLAN, BATCH, COSTS, SETTINGS)


@pytest.mark.parametrize("breakage", list(BREAKAGES))
def test_broken_plans_are_named(breakage: str) -> None:
    break_it, message = BREAKAGES[breakage]
    with pytest.raises(InvalidPlanError, match=message):
        validate_plan(break_it(PLAN), BATCH, COSTS, SETTINGS)


def test_unequal_counts_are_found_where_the_host_needs_equal_ones() -> None:
    lopsided = replace(PLAN, rank=np.array([0, 0, 0, 1]))
    with pytest.raises(InvalidPlanError, match=r"ranks hold from 1 to 3 samples"):
        validate_plan(lopsided, BATCH, COSTS, PlanSettings(equal_counts=True))
