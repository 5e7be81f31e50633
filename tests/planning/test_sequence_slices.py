"""Every token of a sharded sequence lies on exactly one rank of its node, in one order all ranks agree on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import batch_of, costs_of

from trimtab.errors import InvalidPlanError
from trimtab.planning.sequence_slices import attention_schedule, check_nested, held_slices, sequence_groups
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequenceGroup, SequencePacking

placements = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 7), st.integers(0, 1)), min_size=1)


def placed_plan(placed: list[tuple[int, int, int]], lengths: list[int]) -> tuple[StepPlan, np.ndarray]:
    """A plan of eight ranks with the given degrees, places and micro-batches."""
    batch = batch_of(lengths)
    degree, at, micro_batch = np.array(placed, dtype=np.int64).T
    plan = plan_step(batch, costs_of(batch), 8, PlanSettings())
    return (
        replace(plan, micro_batches=2, rank=at // degree * degree, degree=degree, micro_batch=micro_batch),
        batch.tokens,
    )


def group(degree: int, first: int, *lengths: int) -> SequenceGroup:
    return SequenceGroup(degree=degree, first_rank=first, rows=tuple(range(len(lengths))), lengths=lengths)


@settings(max_examples=100)
@given(placements, st.data())
def test_slices_tile_every_sample_and_are_even(placed: list[tuple[int, int, int]], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=len(placed), max_size=len(placed)))
    plan, tokens = placed_plan(placed, lengths)
    held: dict[int, list[tuple[int, int]]] = {row: [] for row in range(len(placed))}
    for micro_batch in range(2):
        groups = sequence_groups(plan, tokens, micro_batch, packing=SequencePacking(below=50, tokens=50))
        check_nested(groups, 8)
        assert all(max(group.shares) - min(group.shares) <= 1 for group in groups)
        for rank in range(8):
            for part in held_slices(plan, tokens, groups, rank, micro_batch):
                assert plan.rank[part.row] <= rank < plan.rank[part.row] + plan.degree[part.row]
                held[part.row].append((part.start, part.stop))
    for row, parts in held.items():
        bounds = [0, *(stop for _, stop in parts)]
        assert [start for start, _ in parts] == bounds[:-1]
        assert bounds[-1] == tokens[row]


def test_short_sequences_of_a_node_travel_together_and_long_ones_alone() -> None:
    plan, tokens = placed_plan([(4, 0, 0)] * 5 + [(4, 4, 0), (2, 0, 0)], [10, 20, 90, 15, 15, 10, 10])
    groups = sequence_groups(plan, tokens, 0, packing=SequencePacking(below=30, tokens=30))
    assert [(each.degree, each.first_rank, each.rows) for each in groups] == [
        (4, 0, (0, 1)), (4, 0, (2,)), (4, 0, (3, 4)), (4, 4, (5,)), (2, 0, (6,)),
    ]  # fmt: skip


def test_a_sample_without_tokens_may_come_first() -> None:
    plan, tokens = placed_plan([(2, 0, 0), (2, 0, 0)], [0, 5])
    assert [held.rows for held in sequence_groups(plan, tokens, 0)] == [(0, 1)]


def test_a_sequence_shorter_than_its_node_leaves_ranks_without_tokens() -> None:
    assert group(4, 0, 1).shares == (0, 0, 0, 1)
    assert group(4, 0, 1).slices(0) == []


@pytest.mark.parametrize("groups", range(5))
def test_each_exchange_starts_before_the_attention_it_runs_beside(groups: int) -> None:
    steps = attention_schedule(groups)
    assert sorted(steps) == sorted((step, k) for step in ("scatter", "attend", "collect") for k in range(groups))
    for k in range(groups):
        assert steps.index(("scatter", k)) < steps.index(("attend", k)) < steps.index(("collect", k))
        if k + 1 < groups:
            assert steps.index(("scatter", k + 1)) < steps.index(("attend", k))
            assert steps.index(("attend", k + 1)) < steps.index(("collect", k))


def test_nodes_that_overlap_without_nesting_are_refused() -> None:
    with pytest.raises(InvalidPlanError, match="ranks 0 to 1 and 1 to 2, overlap"):
        check_nested([group(2, 0, 5), group(2, 1, 5)], 4)
    with pytest.raises(InvalidPlanError, match="overlap but neither holds the other"):
        check_nested([group(4, 2, 5), group(2, 5, 5)], 8)
    check_nested([group(4, 0, 5), group(4, 4, 5), group(2, 4, 5), group(2, 6, 5), group(2, 0, 5)], 8)


def test_an_order_that_rises_in_degree_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="higher degrees come first"):
        check_nested([group(2, 0, 5), group(4, 0, 5)], 4)


def test_a_node_beyond_the_last_rank_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match=r"ranks 4 to 7, but the run has ranks 0 to 5"):
        check_nested([group(4, 4, 5)], 6)
