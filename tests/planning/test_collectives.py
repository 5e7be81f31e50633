"""Contract 4: the order of collectives is known before anything runs, and a flipped one is found."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import batch_of, costs_of

from trimtab.errors import InvalidPlanError
from trimtab.planning import collectives
from trimtab.planning.collectives import Collective, check_order, first_difference, step_order
from trimtab.planning.sequence_slices import check_nested, sequence_groups
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequencePacking

A = Collective("a", (0, 1))
B = Collective("b", (0, 1))
C = Collective("c", (1, 2))


def plan_of(ranks: int, cap: int | None = None) -> StepPlan:
    batch = batch_of([5, 9, 30, 7, 2], [[(1, 4, 4)], [], [(3, 4, 4)], [], [(1, 8, 8)]])
    return plan_step(batch, costs_of(batch), ranks, PlanSettings(max_tokens_per_micro_batch=cap))


def test_equal_sequences_are_in_order() -> None:
    check_order([[A, B], [A, B, C], [C]])


def test_flipped_collectives_are_found_and_both_ranks_named() -> None:
    with pytest.raises(InvalidPlanError, match=r"rank 0 waits at 'a'.*rank 1 waits at 'b'"):
        check_order([[A, B], [B, A], []])


def test_a_member_that_never_comes_is_named() -> None:
    with pytest.raises(InvalidPlanError, match="rank 1 has ended"):
        check_order([[A], []])


def test_a_rank_outside_the_group_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="no member"):
        check_order([[C], [C], [C]])


def test_a_cycle_through_three_groups_is_found() -> None:
    ring = [Collective(name, ranks) for name, ranks in (("x", (0, 1)), ("y", (1, 2)), ("z", (0, 2)))]
    with pytest.raises(InvalidPlanError, match="wait for ever"):
        check_order([[ring[0], ring[2]], [ring[1], ring[0]], [ring[2], ring[1]]])


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_planned_step_is_in_order(ranks: int) -> None:
    sequences = step_order(plan_of(ranks, cap=60), vision_gathers=2, language_gathers=3)
    assert len({tuple(sequence) for sequence in sequences}) == 1
    check_order(sequences)


def test_a_step_without_visuals_exchanges_nothing() -> None:
    batch = batch_of([5, 9])
    assert step_order(plan_step(batch, costs_of(batch), 2, PlanSettings())) == [[], []]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 7)), min_size=1, max_size=12))
def test_nested_sequence_groups_never_wait_for_each_other(placed: list[tuple[int, int]]) -> None:
    plan = plan_of(8)
    degree = np.array([degree for degree, _ in placed], dtype=np.int64)
    first = np.array([at // degree * degree for degree, at in placed], dtype=np.int64)
    check_order(
        step_order(replace(plan, rank=first, degree=degree, micro_batch=np.zeros_like(first)), language_gathers=1)
    )


def test_traces_part_where_the_first_collective_differs() -> None:
    assert first_difference([["x", "y"], ["x", "y"]]) is None
    assert first_difference([["x", "y"], ["x", "z"]]) == "collective 1: rank 0 issued y, rank 1 issued z"
    assert first_difference([["x"], ["x", "z"]]) == "collective 1: rank 0 issued nothing, rank 1 issued z"


def random_plan(draw: np.random.Generator, ranks: int = 16) -> tuple[StepPlan, np.ndarray]:
    count = int(draw.integers(1, 40))
    degree = draw.choice([1, 2, 4, 8], count)
    first = draw.integers(0, ranks, count) // degree * degree
    plan = replace(plan_of(ranks), rank=first, degree=degree, micro_batch=draw.integers(0, 2, count), micro_batches=2)
    return plan, draw.integers(1, 60, count)


def test_a_thousand_random_plans_are_in_order() -> None:
    draw = np.random.default_rng(0)
    for _ in range(1000):
        plan, tokens = random_plan(draw, ranks=8)
        check_order(step_order(plan, language_gathers=1, tokens=tokens, packing=SequencePacking(below=50, tokens=50)))


def test_random_plans_in_another_order_than_highest_first_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    stuck = 0
    for _ in range(100):
        plan, tokens = random_plan(draw)
        groups = [sequence_groups(plan, tokens, m, packing=SequencePacking(below=50, tokens=50)) for m in range(2)]
        for of_micro_batch in groups:
            draw.shuffle(of_micro_batch)  # type: ignore[arg-type]  # one order for all ranks, but not by level
        for of_micro_batch in groups:
            if [g.degree for g in of_micro_batch] != sorted((g.degree for g in of_micro_batch), reverse=True):
                with pytest.raises(InvalidPlanError, match="higher degrees come first"):
                    check_nested(of_micro_batch, 16)
        with monkeypatch.context() as patched:
            patched.setattr(collectives, "sequence_groups", lambda plan, tokens, m, **_: groups[m])  # noqa: B023
            patched.setattr(collectives, "check_nested", lambda *_: None)
            try:
                check_order(step_order(plan, tokens=tokens))
            except InvalidPlanError as error:
                stuck += "wait for ever" in str(error)
    assert stuck > 20


def test_one_rank_in_another_order_is_found() -> None:
    plan, tokens = random_plan(np.random.default_rng(3))
    orders = step_order(plan, tokens=tokens)
    flipped = next(rank for rank, order in enumerate(orders) if len({each.ranks for each in order}) > 1)
    orders[flipped] = orders[flipped][::-1]
    with pytest.raises(InvalidPlanError, match="wait for ever"):
        check_order(orders)


def test_overlapping_nodes_have_no_order() -> None:
    first = np.array([0, 1])
    plan = replace(plan_of(4), rank=first, degree=np.array([2, 2]), micro_batch=np.zeros_like(first))
    with pytest.raises(InvalidPlanError, match="neither holds the other"):
        step_order(plan)


def test_a_plan_is_played_through_before_it_is_handed_out_where_asked_to() -> None:
    batch = batch_of([4000, 300, 200, 100])
    with mock.patch("trimtab.planning.step.step_order", return_value=[[Collective("a", (0, 1))], []]):
        plan_step(batch, costs_of(batch), 2, PlanSettings())
        with pytest.raises(InvalidPlanError, match=r"rank 0 waits at 'a' of ranks \[0, 1\], but rank 1 has ended"):
            plan_step(batch, costs_of(batch), 2, PlanSettings(check_order=True))
    assert len(plan_step(batch, costs_of(batch), 2, PlanSettings(check_order=True))) == 4
