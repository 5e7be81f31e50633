"""Sharded plans: legal, bounded, never slower than simpler ones, the same whatever order samples come in."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import LANGUAGE, batch_of, batches, costs_of, sharded_costs_of

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.collectives import check_order, step_order
from trimtab.planning.loads import cost_at_degree, sharded_loads
from trimtab.planning.metrics import plan_metrics
from trimtab.planning.partition import partition
from trimtab.planning.sequence_groups import group_family
from trimtab.planning.settings import Objective, PlanSettings
from trimtab.planning.step import partition_problem, plan_step
from trimtab.planning.strategies import strategy_named
from trimtab.planning.validate import validate_plan
from trimtab.planning.workloads import generated_batch
from trimtab.schema.metadata import BatchMetadata

ADAPTIVE = PlanSettings(strategy="adaptive", max_degree=8)


@settings(max_examples=40)
@given(batch=batches(), ranks=st.integers(1, 12), cap=st.sampled_from([None, 40_000, 200_000]), data=st.data())
def test_plans_are_legal_and_never_slower_than_simpler_ones(
    batch: BatchMetadata, ranks: int, cap: int | None, data: st.DataObject
) -> None:
    wanted = replace(
        ADAPTIVE, max_tokens_per_micro_batch=cap, sync=data.draw(st.sampled_from(["layer", "micro_batch"]))
    )
    costs = sharded_costs_of(batch, ranks)
    family = group_family(ranks, LANGUAGE.legal_degrees(8), 8)
    if cap is not None and batch.tokens.max() > cap * family.degrees[-1]:
        with pytest.raises(InfeasibleError, match=r"a sequence-parallel degree of|none of which is enough"):
            plan_step(batch, costs, ranks, wanted)
        return
    plan = plan_step(batch, costs, ranks, wanted)
    validate_plan(plan, batch, costs, wanted)
    assert plan.lower_bound_ns <= plan.step_ns
    for first, degree in zip(plan.rank.tolist(), plan.degree.tolist(), strict=True):
        assert family.node_of(first, degree) == tuple(range(first, first + degree))
    check_order(step_order(plan))
    for simpler in ("whole-sample", *(f"uniform-{degree}" for degree in family.degrees[1:])):
        try:
            other = plan_step(batch, costs, ranks, replace(wanted, strategy=simpler))
        except (InfeasibleError, SettingsError):
            continue
        validate_plan(other, batch, costs, wanted)
        assert plan.step_ns <= other.step_ns, simpler


@pytest.mark.parametrize("objective", ["time", "attention"])
@pytest.mark.parametrize("cap", [None, 12_000])
def test_degrees_of_no_chain_with_the_others_are_candidates_too(objective: Objective, cap: int | None) -> None:
    """Of 48 heads and 8 KV heads 16 and 24 are legal, and 48 ranks form nodes of both."""
    language = replace(LANGUAGE, heads=48, kv_heads=8)
    for seed in range(3):
        batch = generated_batch("image-heavy", 48, seed)
        costs = sharded_costs_of(batch, 48, 24, language)
        wanted = replace(ADAPTIVE, max_degree=24, objective=objective, max_tokens_per_micro_batch=cap)
        plan = plan_step(batch, costs, 48, wanted)
        validate_plan(plan, batch, costs, wanted)
        for degree in (8, 16, 24):
            other = plan_step(batch, costs, 48, replace(wanted, strategy=f"uniform-{degree}"))
            if objective == "time":
                assert plan.step_ns <= other.step_ns
            else:
                ratios = [plan_metrics(each, batch).attention_ratio for each in (plan, other)]
                assert ratios[0] <= ratios[1] * (1 + 1e-6)


def test_of_plans_as_fast_the_one_that_sends_fewest_bytes_is_taken() -> None:
    """Vision decides the time of the one micro-batch; language alone would be faster sharded."""
    batch = batch_of([2000, 1], [[], [(1, 4, 4)]])
    costs = replace(sharded_costs_of(batch, 6), vision_frame_ns=np.array([10**8]))
    plan = plan_step(batch, costs, 6, replace(ADAPTIVE, sync="micro_batch"))
    whole = plan_step(batch, costs, 6, replace(ADAPTIVE, sync="micro_batch", strategy="whole-sample"))
    assert plan.step_ns == whole.step_ns
    assert (plan.degree == 1).all()


def test_a_degree_that_leaves_ranks_over_is_used_where_nothing_less_fits() -> None:
    batch = batch_of([24_000, *[500] * 40])
    costs = sharded_costs_of(batch, 32, 24, replace(LANGUAGE, heads=48, kv_heads=8))
    wanted = replace(ADAPTIVE, max_degree=24, max_tokens_per_micro_batch=1200)
    plan = plan_step(batch, costs, 32, wanted)
    validate_plan(plan, batch, costs, wanted)
    assert plan.degree[0] == 24


@settings(max_examples=20)
@given(batch=batches(), ranks=st.integers(1, 8), data=st.data())
def test_input_order_changes_no_load(batch: BatchMetadata, ranks: int, data: st.DataObject) -> None:
    """Of the search; a whole plan may also keep the order samples came in."""
    order = np.array(data.draw(st.permutations(range(len(batch)))), dtype=np.int64)
    loads = []
    for each in (batch, batch.take(order)):
        costs = sharded_costs_of(each, ranks)
        found = partition(partition_problem(each, costs, ranks, ADAPTIVE), strategy_named("adaptive"))
        assert found.degree is not None
        on_rank = cost_at_degree(costs, found.degree)
        loads.append(np.sort(sharded_loads(on_rank, found.rank, found.micro_batch, found.degree, (1, ranks))[0]))
    assert (loads[0] == loads[1]).all()


def test_the_same_inputs_give_the_same_digest() -> None:
    batch = generated_batch("image-heavy", 64, 0)
    assert len({plan_step(batch, sharded_costs_of(batch, 16), 16, ADAPTIVE).digest() for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("tokens", "ranks"),
    [
        ([64_000], 8),  # one long sample
        ([64_000, 10], 12),  # fewer samples than ranks, which are no multiple of 8
        ([500] * 24, 8),  # all equal
        ([0, 0, 0], 4),  # no work at all
        ([64_000, *[300] * 30], 7),  # ranks left over at every degree
    ],
)
def test_corner_cases_are_planned(tokens: list[int], ranks: int) -> None:
    batch = batch_of(tokens)
    costs = sharded_costs_of(batch, ranks)
    plan = plan_step(batch, costs, ranks, ADAPTIVE)
    validate_plan(plan, batch, costs, ADAPTIVE)
    assert plan.step_ns <= 1.2 * max(plan.lower_bound_ns, 1)


def test_an_empty_batch_is_planned() -> None:
    batch = batch_of([10]).take([])
    plan = plan_step(batch, sharded_costs_of(batch, 8), 8, ADAPTIVE)
    assert (len(plan), plan.step_ns) == (0, 0)


def test_a_long_sample_among_short_ones_is_sharded_and_they_are_not() -> None:
    batch = batch_of([64_000, *[1000] * 64])
    plan = plan_step(batch, sharded_costs_of(batch, 8), 8, ADAPTIVE)
    assert plan.degree[0] == 8
    assert (plan.degree[1:] == 1).all()
    whole = plan_step(batch, costs_of(batch), 8, PlanSettings())
    assert plan.step_ns < 0.2 * whole.step_ns


def test_nothing_is_sharded_where_whole_samples_are_even() -> None:
    batch = batch_of([1000] * 64)
    assert (plan_step(batch, sharded_costs_of(batch, 8), 8, ADAPTIVE).degree == 1).all()


def test_a_cap_alone_shards_a_sample_that_fits_nowhere() -> None:
    batch = batch_of([6000, *[1000] * 8])
    wanted = replace(ADAPTIVE, max_tokens_per_micro_batch=2000)
    costs = sharded_costs_of(batch, 4)
    plan = plan_step(batch, costs, 4, wanted)
    validate_plan(plan, batch, costs, wanted)
    assert plan.degree[0] == 4


def test_attention_alone_can_be_evened() -> None:
    batch = generated_batch("image-heavy", 256, 0)
    costs = sharded_costs_of(batch, 32)
    by_time = plan_metrics(plan_step(batch, costs, 32, ADAPTIVE), batch, max_degree=8)
    by_attention = plan_metrics(
        plan_step(batch, costs, 32, replace(ADAPTIVE, objective="attention")), batch, max_degree=8
    )
    assert 1 == by_attention.attention_floor <= by_attention.attention_ratio <= 1.02
    assert by_time.step_ratio <= by_attention.step_ratio


def test_the_attention_floor_is_what_the_longest_sample_leaves() -> None:
    batch = batch_of([8000, *[1000] * 16])
    plan = plan_step(batch, sharded_costs_of(batch, 16), 16, ADAPTIVE)
    found = plan_metrics(plan, batch, max_degree=8)
    assert found.attention_floor == pytest.approx(16 * 64 / (8 * (64 + 16)))
    assert found.attention_ratio >= found.attention_floor


def test_the_smallest_legal_degree_that_fits_is_named() -> None:
    """Of 40 heads and 8 KV heads degrees 1, 2, 4, 8 and 40 are legal: where 9 would fit, 40 is named."""
    language = replace(LANGUAGE, heads=40, kv_heads=8)
    batch = batch_of([10, 9000])
    costs = sharded_costs_of(batch, 8, language=language)
    wanted = replace(ADAPTIVE, max_tokens_per_micro_batch=1000)
    with pytest.raises(
        InfeasibleError,
        match=r"9000 tokens at the largest degree, 8, exceed .* degree of 40 is .* needs 40 ranks; there are 8",
    ):
        plan_step(batch, costs, 8, wanted)
    with pytest.raises(InfeasibleError, match=r"use more ranks: .* degree of 4 .* there are 2"):
        plan_step(
            batch, sharded_costs_of(batch, 2, language=language), 2, replace(wanted, max_tokens_per_micro_batch=3000)
        )
    whole = PlanSettings(max_tokens_per_micro_batch=3000)
    with pytest.raises(InfeasibleError, match=r"9000 tokens exceed .* degree of 4 is the smallest"):
        plan_step(batch, costs, 8, whole)
    with pytest.raises(InfeasibleError, match=r"allow degrees 1, 2, 4, 8, 40 only, none of which is enough"):
        plan_step(batch, costs, 8, PlanSettings(max_tokens_per_micro_batch=200))


@pytest.mark.parametrize(
    ("wanted", "ranks", "message"),
    [
        ({"strategy": "uniform-3"}, 6, r"do not split into 3; its legal degrees are 1, 2, 4, 8"),
        ({"strategy": "uniform-4"}, 6, r"needs a multiple of 4 ranks, there are 6"),
        ({"strategy": "adaptive", "sync": "step"}, 8, r"needs sync='layer'"),
        ({"strategy": "adaptive", "equal_counts": True}, 8, r"does not honour equal_counts"),
        ({"strategy": "uniform-0"}, 8, r"'uniform-0' is unknown"),
    ],
)
def test_what_cannot_be_sharded_is_refused(wanted: dict[str, object], ranks: int, message: str) -> None:
    batch = batch_of([100, 200])
    with pytest.raises(SettingsError, match=message):
        plan_step(batch, sharded_costs_of(batch, ranks), ranks, PlanSettings(max_degree=8, **wanted))  # type: ignore[arg-type]


def test_costs_of_whole_samples_and_packs_are_refused() -> None:
    batch = batch_of([100, 200])
    with pytest.raises(SettingsError, match=r"with_degrees"):
        plan_step(batch, costs_of(batch), 2, ADAPTIVE)
    with pytest.raises(SettingsError, match=r"packs run whole"):
        plan_step(batch, sharded_costs_of(batch, 2), 2, ADAPTIVE, pack_of=[0, 1])
