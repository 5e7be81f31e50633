"""Packs are indivisible to the composer: it chooses their rank and micro-batch, and spreads their vision units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import batch_of, batches, costs_of

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.validate import validate_plan
from trimtab.schema.metadata import BatchMetadata


def places_of(pack_of: np.ndarray, rank: np.ndarray, micro_batch: np.ndarray) -> dict[int, set[tuple[int, int]]]:
    return {
        pack: set(zip(rank[pack_of == pack].tolist(), micro_batch[pack_of == pack].tolist(), strict=True))
        for pack in np.unique(pack_of).tolist()
    }


@settings(max_examples=100)
@given(
    batch=batches(),
    ranks=st.integers(1, 5),
    sync=st.sampled_from(["step", "micro_batch", "layer"]),
    spread=st.booleans(),
    strategy=st.sampled_from(["whole-sample", "as-is", "equal-count"]),
    data=st.data(),
)
def test_packs_stay_whole_and_alone_and_no_slower(
    batch: BatchMetadata, ranks: int, sync: str, spread: bool, strategy: str, data: st.DataObject
) -> None:
    packs = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(batch), max_size=len(batch))))
    wanted = PlanSettings(strategy=strategy, sync=sync, balance_vision=spread)  # type: ignore[arg-type]
    costs = costs_of(batch)
    plan = plan_step(batch, costs, ranks, wanted, pack_of=packs)
    validate_plan(plan, batch, costs, wanted)
    places = places_of(packs, plan.rank, plan.micro_batch)
    assert all(len(place) == 1 for place in places.values())
    assert len(set.union(*places.values())) == len(places)
    assert plan.micro_batches <= -(-(int(packs.max()) + 1) // ranks)
    assert plan.lower_bound_ns <= plan.step_ns
    assert strategy == "equal-count" or plan.step_ns <= plan.current_step_ns


def test_packs_run_beside_packs_alike() -> None:
    batch = batch_of([100, 900, 120, 950, 400, 410])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(), pack_of=[0, 1, 2, 3, 4, 5])
    assert {frozenset(np.flatnonzero(plan.micro_batch == index).tolist()) for index in range(3)} == {
        frozenset({1, 3}),
        frozenset({4, 5}),
        frozenset({0, 2}),
    }


def test_as_is_keeps_the_dealt_slots() -> None:
    batch = batch_of([10, 20, 30, 40])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(strategy="as-is"), pack_of=[0, 1, 3, 3])
    assert plan.rank.tolist() == [0, 1, 1, 1]
    assert plan.micro_batch.tolist() == [0, 0, 1, 1]


def test_vision_units_of_packs_are_spread_over_ranks() -> None:
    batch = batch_of([50, 50], [[(8, 8, 8)], []])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(), pack_of=[0, 1])
    assert plan.vision_ns.min() == plan.vision_ns.max()


def test_what_contradicts_packs_is_refused() -> None:
    batch = batch_of([100, 100, 50])
    costs = costs_of(batch)
    with pytest.raises(SettingsError, match="equal_counts contradicts packs"):
        plan_step(batch, costs, 2, PlanSettings(equal_counts=True), pack_of=[0, 0, 1])
    with pytest.raises(SettingsError, match="pack_of and current_rank exclude each other"):
        plan_step(batch, costs, 2, PlanSettings(), pack_of=[0, 0, 1], current_rank=[0, 0, 1])
    for wrong in ([0, 1], [0, -1, 1]):
        with pytest.raises(SettingsError, match="a pack from 0 for each of 3 samples"):
            plan_step(batch, costs, 2, PlanSettings(), pack_of=wrong)
    with pytest.raises(InfeasibleError, match="packs of at most 200 tokens do not fit on 2 ranks"):
        plan_step(batch, costs, 2, PlanSettings(max_tokens_per_micro_batch=150), pack_of=[0, 0, 1])
    with pytest.raises(SettingsError, match="'karmarkar-karp' does not honour equal_counts"):
        plan_step(batch, costs, 2, PlanSettings(strategy="karmarkar-karp"), pack_of=[0, 0, 1])
