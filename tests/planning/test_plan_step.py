"""The composer: legal, never worse, the same on every rank, clear where no plan exists."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import batch_of, batches, costs_of, sharded_costs_of

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.embedding_exchange import embedding_bytes_sent
from trimtab.planning.loads import step_time
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.validate import validate_plan
from trimtab.schema.costs import Costs, EmbeddingExchange
from trimtab.schema.metadata import BatchMetadata

plan_settings = st.builds(
    PlanSettings,
    sync=st.sampled_from(["step", "micro_batch", "layer"]),
    balance_vision=st.booleans(),
    equal_counts=st.booleans(),
    max_tokens_per_micro_batch=st.sampled_from([None, 150_000, 400_000]),
)


@settings(max_examples=150)
@given(batch=batches(), ranks=st.integers(1, 8), wanted=plan_settings)
def test_plans_are_legal_and_never_worse(batch: BatchMetadata, ranks: int, wanted: PlanSettings) -> None:
    cap = wanted.max_tokens_per_micro_batch
    if cap is not None and batch.tokens.max() > cap:
        wanted = replace(wanted, max_tokens_per_micro_batch=int(batch.tokens.max()))
    costs = costs_of(batch)
    plan = plan_step(batch, costs, ranks, wanted)
    validate_plan(plan, batch, costs, wanted)
    counts = np.bincount(plan.rank * plan.micro_batches + plan.micro_batch)
    if not wanted.equal_counts or counts.max() <= 1 or cap is None:
        assert plan.lower_bound_ns <= plan.step_ns <= plan.current_step_ns


@settings(max_examples=30)
@given(batch=batches(), ranks=st.integers(1, 8), data=st.data())
def test_staying_near_is_never_worse_either(batch: BatchMetadata, ranks: int, data: st.DataObject) -> None:
    current = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(batch), max_size=len(batch)))
    costs = costs_of(batch)
    plan = plan_step(batch, costs, ranks, PlanSettings(), current_rank=current)
    validate_plan(plan, batch, costs, PlanSettings())
    assert plan.step_ns <= plan.current_step_ns


def test_the_same_inputs_give_the_same_digest() -> None:
    batch = batch_of([100, 2000, 30, 800], [[(4, 8, 8)], [], [(1, 20, 20), (1, 4, 4)], []])
    digests = {plan_step(batch, costs_of(batch), 2, PlanSettings()).digest() for _ in range(3)}
    assert len(digests) == 1
    assert plan_step(batch, costs_of(batch), 3, PlanSettings()).digest() not in digests


def test_as_is_deals_contiguous_blocks_and_leaves_vision_with_its_sample() -> None:
    batch = batch_of([10, 20, 30, 40, 50], [[(1, 8, 8)], [], [(6, 4, 4)], [], []])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(strategy="as-is"))
    assert plan.rank.tolist() == [0, 0, 0, 1, 1]
    assert plan.units.rank.tolist() == [0, 0]
    assert plan.step_ns == plan.current_step_ns


def test_step_time_adds_what_ranks_wait_for() -> None:
    """One long text and one long video: by layer their maxima add, over the step they overlap."""
    batch = batch_of([1000, 0], [[], [(10, 40, 40)]])
    language = costs_of(batch).language_ns.tolist()
    frame = int(costs_of(batch).vision_frame_ns[0])
    times = {
        sync: plan_step(batch, costs_of(batch), 2, PlanSettings(strategy="as-is", sync=sync)).step_ns
        for sync in ("step", "micro_batch", "layer")
    }
    assert times["layer"] == max(language) + 10 * frame
    assert times["step"] == times["micro_batch"] == max(language[0], language[1] + 10 * frame)


def test_meeting_points_of_two_micro_batches() -> None:
    language, vision = np.array([[4, 1], [1, 4]]), np.array([[0, 2], [2, 0]])
    assert step_time(language, vision, "step") == 7
    assert step_time(language, vision, "step", np.array([5, 0])) == 12
    assert step_time(language, vision, "micro_batch") == 8
    assert step_time(language, vision, "layer") == 12


def test_an_order_that_was_better_is_kept() -> None:
    """Longest first ends at 16, where no exchange of two helps; as they came the ranks had 15 each."""
    batch = batch_of([1] * 9)
    costs = Costs(language_ns=np.array([9, 5, 1, 8, 4, 3, 7, 6, 2]), vision_frame_ns=np.zeros(0, dtype=np.int64))
    plan = plan_step(batch, costs, 3, PlanSettings())
    assert plan.step_ns == plan.current_step_ns == 15


def test_denominators_count_loss_tokens_and_sequences() -> None:
    batch = batch_of([10, 1, 31])
    assert plan_step(batch, costs_of(batch), 2, PlanSettings()).denominators == {"tokens": 20, "sequences": 2}


def test_fewer_samples_than_ranks_and_no_visuals() -> None:
    batch = batch_of([10, 20])
    plan = plan_step(batch, costs_of(batch), 8, PlanSettings())
    assert len(set(plan.rank.tolist())) == 2
    assert len(plan.units) == 0
    assert [len(plan.rows(rank, 0)) for rank in range(8)].count(0) == 6


def test_micro_batches_are_equal_in_number_and_may_be_empty() -> None:
    batch = batch_of([60, 60, 60])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(max_tokens_per_micro_batch=100))
    assert plan.micro_batches == 2
    assert plan.language_ns.shape == (2, 2)
    assert sorted(len(plan.rows(rank, m)) for rank in range(2) for m in range(2)) == [0, 1, 1, 1]


def test_ranks_may_stop_early_where_the_host_allows() -> None:
    batch = batch_of([100, 40, 40, 40])
    settings = PlanSettings(sync="step", max_tokens_per_micro_batch=100, equal_microbatches=False)
    plan = plan_step(batch, costs_of(batch), 2, settings)
    needed = sorted(int(plan.micro_batch[plan.rank == rank].max()) + 1 for rank in range(2))
    assert needed == [1, 2]


def test_a_sample_over_the_cap_is_named_with_the_degree_that_would_do() -> None:
    batch = batch_of([10, 131_072])
    with pytest.raises(InfeasibleError, match=r"sample sample-1: 131072 tokens exceed .*=40000; .* degree of 4"):
        plan_step(batch, costs_of(batch), 2, PlanSettings(max_tokens_per_micro_batch=40_000))


def test_caps_no_arrangement_meets_are_refused() -> None:
    batch = batch_of([60, 60, 60])
    with pytest.raises(InfeasibleError, match=r"no arrangement of 3 samples .* max_tokens_per_rank=100"):
        plan_step(batch, costs_of(batch), 2, PlanSettings(max_tokens_per_rank=100))


def test_samples_move_only_as_far_as_needed() -> None:
    """Eight equal samples on two ranks, one too many on the first: one moves."""
    batch = batch_of([100] * 8)
    current = [0, 0, 0, 0, 0, 1, 1, 1]
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(), current_rank=current)
    assert (plan.rank != current).sum() == 1
    assert plan.step_ns == plan.lower_bound_ns


def test_groups_are_named_after_the_ranks_that_hold_them() -> None:
    batch = batch_of([100, 1, 100, 1])
    plan = plan_step(batch, costs_of(batch), 2, PlanSettings(), current_rank=[1, 1, 0, 0])
    assert plan.rank.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"history": [1, 2]}, r"history needs sync='step'"),
        ({"rank_speed": [1.0]}, r"rank_speed has shape \(1,\)"),
        ({"rank_speed": [1.0, 0.0]}, r"must be positive"),
        ({"current_rank": [0, 2]}, r"a rank below 2"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, list[float]], message: str) -> None:
    batch = batch_of([10, 20])
    with pytest.raises(SettingsError, match=message):
        plan_step(batch, costs_of(batch), 2, PlanSettings(), **arguments)


@pytest.mark.parametrize(
    "values",
    [
        {"sync": "epoch"},
        {"max_tokens_per_micro_batch": 0},
        {"max_degree": 0},
        {"locality_tolerance": 1.0},
        {"equal_microbatches": False},
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        PlanSettings(**values)


@settings(max_examples=30)
@given(batch=batches(), ranks=st.integers(1, 6))
def test_published_strategies_plan_whole_steps_too(batch: BatchMetadata, ranks: int) -> None:
    costs = costs_of(batch)
    for name in ("equal-count", "loongforge", "karmarkar-karp"):
        wanted = PlanSettings(strategy=name, max_tokens_per_micro_batch=int(batch.tokens.max()) + 1)
        validate_plan(plan_step(batch, costs, ranks, wanted), batch, costs, wanted)


@pytest.mark.parametrize("strategy", ["whole-sample", "adaptive"])
@settings(max_examples=40)
@given(batch=batches(), ranks=st.integers(2, 6), latency_ns=st.sampled_from([0, 10**5, 10**8]))
def test_exchanges_of_embeddings_count_where_their_cost_is_known(
    batch: BatchMetadata, ranks: int, latency_ns: int, strategy: str
) -> None:
    exchange = EmbeddingExchange(token_bytes=128, latency_ns=latency_ns, gigabyte_ns=10**9)
    costs = replace(sharded_costs_of(batch, ranks), exchange=exchange)
    wanted = PlanSettings(strategy=strategy, max_degree=4)
    plan = plan_step(batch, costs, ranks, wanted)
    validate_plan(plan, batch, costs, wanted)
    assert plan.step_ns <= plan.current_step_ns
    sent = embedding_bytes_sent(plan, batch, 128)
    assert plan.exchange_ns == 2 * sum(latency_ns + fullest for fullest in sent.max(axis=1).tolist() if fullest)


def test_exchanges_of_hours_do_not_wrap_round() -> None:
    batch = batch_of([50] * 4, [[(1, 400, 400)], [], [], []])
    exchange = EmbeddingExchange(token_bytes=10**6, latency_ns=0, gigabyte_ns=10**15)
    plan = plan_step(batch, replace(costs_of(batch), exchange=exchange), 2, PlanSettings(strategy="loongforge"))
    assert 0 <= plan.exchange_ns < plan.step_ns


@given(batch=batches(), ranks=st.integers(2, 6), data=st.data())
def test_samples_on_ranks_are_planned_with_the_exchange_too(
    batch: BatchMetadata, ranks: int, data: st.DataObject
) -> None:
    exchange = EmbeddingExchange(token_bytes=128, latency_ns=10**5, gigabyte_ns=10**9)
    costs = replace(costs_of(batch), exchange=exchange)
    placed = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(batch), max_size=len(batch)))
    plan = plan_step(batch, costs, ranks, PlanSettings(), current_rank=placed)
    assert plan.step_ns <= plan.current_step_ns * 1.011
    assert plan.exchange_ns == exchange.step_ns(embedding_bytes_sent(plan, batch, 128))


def test_costs_of_another_batch_and_negative_ones_are_refused() -> None:
    batch = batch_of([50] * 4)
    with pytest.raises(SettingsError, match=r"costs\.language_ns has shape \(3,\), expected one entry for each of 4"):
        plan_step(batch, costs_of(batch_of([50] * 3)), 2, PlanSettings())
    with pytest.raises(SettingsError, match=r"costs\.language_ns must not be negative .*, found -1 in row 0"):
        plan_step(batch, Costs(language_ns=np.full(4, -1), vision_frame_ns=np.zeros(0, np.int64)), 2, PlanSettings())


def test_embeddings_stay_where_sending_them_takes_longer_than_it_saves() -> None:
    batch = batch_of([50] * 4, [[(1, 8, 8)], [], [(1, 8, 8)], []])
    free = costs_of(batch)
    slow = replace(free, exchange=EmbeddingExchange(token_bytes=128, latency_ns=10**9, gigabyte_ns=0))
    plans = [plan_step(batch, costs, 4, PlanSettings()) for costs in (free, slow)]
    assert [plan.exchange_ns for plan in plans] == [0, 0]
    owners = plans[1].rank[batch.sample_of_visual[plans[1].units.visual]]
    assert (plans[1].units.rank == owners).all()
