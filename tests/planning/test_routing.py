"""Routes carry every embedding row to the samples that use it, in order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import batch_of, batches, costs_of

from trimtab.errors import InvalidPlanError
from trimtab.planning.routing import route_samples, route_vision
from trimtab.planning.sequence_slices import held_slices, sequence_groups
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.routes import RoutePlan
from trimtab.schema.sequences import SequencePacking


def deliver(route: RoutePlan, sources: list[np.ndarray]) -> list[np.ndarray]:
    """What an all-to-all by each rank's local route delivers."""
    local = [route.local(rank) for rank in range(route.ranks)]
    wires = [
        np.split(source[part.send_rows], np.cumsum(part.send_splits)[:-1])
        for source, part in zip(sources, local, strict=True)
    ]
    results = []
    for rank, part in enumerate(local):
        received = np.concatenate([wires[peer][rank] for peer in range(route.ranks)])
        assert tuple(len(wires[peer][rank]) for peer in range(route.ranks)) == part.receive_splits
        result = np.full(part.result_rows, -1)
        result[part.receive_rows] = received
        results.append(result)
    return results


def tagged_rows(batch: BatchMetadata, visual: int, start: int, stop: int) -> np.ndarray:
    """A number for every merged token of some frames, the same for visuals of equal key."""
    per_frame = int(batch.visual_tokens[visual] // batch.grid_thw[visual, 0])
    return batch.visual_keys[visual] * 10**7 + np.arange(start * per_frame, stop * per_frame)


def sources_of(batch: BatchMetadata, plan: StepPlan, micro_batch: int) -> list[np.ndarray]:
    units = plan.units
    return [
        np.concatenate(
            [
                tagged_rows(batch, units.visual[unit], units.frame_start[unit], units.frame_stop[unit])
                for unit in plan.unit_rows(rank, micro_batch)
            ]
            or [np.zeros(0, dtype=np.int64)]
        )
        for rank in range(plan.ranks)
    ]


@settings(max_examples=60)
@given(batch=batches(), ranks=st.integers(1, 6), capped=st.booleans())
def test_every_sample_receives_its_visuals_whole_and_in_order(batch: BatchMetadata, ranks: int, capped: bool) -> None:
    cap = int(batch.tokens.max()) + 1 if capped else None
    plan = plan_step(batch, costs_of(batch), ranks, PlanSettings(max_tokens_per_micro_batch=cap))
    for micro_batch in range(plan.micro_batches):
        received = deliver(route_vision(plan, batch, micro_batch), sources_of(batch, plan, micro_batch))
        for rank in range(ranks):
            expected = [
                tagged_rows(batch, visual, 0, batch.grid_thw[visual, 0])
                for row in plan.rows(rank, micro_batch)
                for visual in range(batch.visual_offsets[row], batch.visual_offsets[row + 1])
            ]
            assert received[rank].tolist() == np.concatenate(expected or [np.zeros(0)]).tolist()


@settings(max_examples=60)
@given(batch=batches(), data=st.data(), known=st.booleans())
def test_sharded_samples_receive_the_visual_tokens_of_their_slices(
    batch: BatchMetadata, data: st.DataObject, known: bool
) -> None:
    plan = plan_step(batch, costs_of(batch), 8, PlanSettings())
    degree = np.array([data.draw(st.sampled_from([1, 2, 4, 8])) for _ in range(len(batch))], dtype=np.int64)
    at = np.array([data.draw(st.integers(0, 7)) for _ in range(len(batch))], dtype=np.int64)
    plan = replace(plan, degree=degree, rank=at // degree * degree)
    draw = np.random.default_rng(0)
    visuals = [range(*batch.visual_offsets[row : row + 2]) for row in range(len(batch))]
    tags = [np.concatenate([tagged_rows(batch, v, 0, batch.grid_thw[v, 0]) for v in own] or [[]]) for own in visuals]
    places = [np.sort(draw.choice(batch.tokens[row], len(tags[row]), replace=False)) for row in range(len(batch))]
    if not known:
        places = [np.arange(len(tag)) * batch.tokens[row] // max(1, len(tag)) for row, tag in enumerate(tags)]
    given_places = {row: place for row, place in enumerate(places) if degree[row] > 1} if known else None
    route = route_vision(plan, batch, 0, placeholders=given_places, packing=SequencePacking(below=60, tokens=60))
    received = deliver(route, sources_of(batch, plan, 0))
    groups = sequence_groups(plan, batch.tokens, 0, packing=SequencePacking(below=60, tokens=60))
    for rank in range(8):
        expected = [
            tags[part.row][(places[part.row] >= part.start) & (places[part.row] < part.stop)]
            for part in held_slices(plan, batch.tokens, groups, rank, 0)
        ]
        assert received[rank].tolist() == np.concatenate(expected or [np.zeros(0)]).tolist()


def test_a_rank_needs_the_placeholders_of_what_it_holds_and_encodes_alone() -> None:
    batch = batch_of([10, 10, 10], [[(4, 8, 8)], [(1, 8, 8)], [(2, 4, 4)]])
    plan = plan_step(batch, costs_of(batch), 4, PlanSettings())
    plan = replace(plan, degree=np.array([2, 2, 2]), rank=np.array([0, 2, 0]))
    draw = np.random.default_rng(0)
    places = {row: np.sort(draw.choice(batch.tokens[row], batch.tokens[row] - 10, replace=False)) for row in range(3)}
    full = route_vision(plan, batch, 0, placeholders=places, packing=SequencePacking(below=1, tokens=1))
    for rank in range(4):
        held = (plan.rank <= rank) & (rank < plan.rank + plan.degree)
        held[batch.sample_of_visual[plan.units.visual[plan.units.rank == rank]]] = True
        own = {row: places[row] for row in np.flatnonzero(held).tolist()}
        found = route_vision(plan, batch, 0, placeholders=own, packing=SequencePacking(below=1, tokens=1)).local(rank)
        for name in ("send_rows", "receive_rows", "send_splits", "receive_splits"):
            assert list(getattr(found, name)) == list(getattr(full.local(rank), name)), (rank, name)


def test_placeholders_must_be_as_many_as_visual_tokens() -> None:
    batch = batch_of([10, 10], [[(4, 8, 8)], []])
    plan = replace(plan_step(batch, costs_of(batch), 2, PlanSettings()), degree=np.array([2, 1]), rank=np.array([0, 0]))
    with pytest.raises(InvalidPlanError, match="sample sample-0: 3 placeholders for 64 visual tokens"):
        route_vision(plan, batch, 0, placeholders={0: np.arange(3)})


@settings(max_examples=40)
@given(ranks=st.integers(1, 5), data=st.data())
def test_samples_travel_to_their_rank_in_row_order_and_back(ranks: int, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, 5), max_size=12)), dtype=np.int64)
    rank = st.lists(st.integers(0, ranks - 1), min_size=len(rows), max_size=len(rows))
    current, target = (np.array(data.draw(rank), dtype=np.int64) for _ in range(2))
    route = route_samples(current, target, rows, ranks)

    def lying(placed: np.ndarray) -> list[np.ndarray]:
        return [
            np.array(
                [10 * sample + i for sample in np.flatnonzero(placed == r) for i in range(rows[sample])], dtype=int
            )
            for r in range(ranks)
        ]

    moved = deliver(route, lying(current))
    assert [part.tolist() for part in moved] == [part.tolist() for part in lying(target)]
    assert [part.tolist() for part in deliver(route.inverse(), moved)] == [part.tolist() for part in lying(current)]


def test_a_frame_nobody_encodes_is_found() -> None:
    batch = batch_of([10, 10], [[(4, 8, 8)], []])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings())
    plan.units.frame_stop[-1] -= 1
    with pytest.raises(InvalidPlanError, match=r"visual 0 of sample sample-0: 3 of 4 frames"):
        route_vision(plan, batch, 0)
