"""Our partition: near the optimum, within hard caps, for ranks of any speed and history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import costs_strategy, problem_of

from trimtab.errors import InfeasibleError
from trimtab.planning.bounds import bin_bound, pigeonhole_bound
from trimtab.planning.partition import partition
from trimtab.planning.strategies import STRATEGIES

OURS = STRATEGIES["whole-sample"]


def exact_optimum(costs: list[int], ranks: int) -> int:
    """Smallest largest load, by branch and bound over longest-first assignments."""
    ordered = sorted(costs, reverse=True)
    best = sum(ordered)

    def place(index: int, load: tuple[int, ...]) -> None:
        nonlocal best
        if index == len(ordered):
            best = min(best, max(load))
            return
        for rank in range(ranks):
            grown = load[rank] + ordered[index]
            if grown < best and load[rank] not in load[:rank]:
                place(index + 1, (*load[:rank], grown, *load[rank + 1 :]))

    place(0, (0,) * ranks)
    return best


@given(costs=st.lists(st.integers(0, 60), min_size=1, max_size=12), ranks=st.integers(1, 4))
def test_bound_and_plan_enclose_the_optimum(costs: list[int], ranks: int) -> None:
    problem = problem_of(costs, ranks)
    load = np.bincount(partition(problem, OURS).rank, weights=problem.cost_ns, minlength=ranks)
    optimum = exact_optimum(costs, ranks)
    assert bin_bound(problem.cost_ns, ranks) <= optimum <= load.max() <= optimum * 4 / 3


def test_pigeonhole_sees_what_the_mean_does_not() -> None:
    costs = np.full(9, 10)
    assert pigeonhole_bound(costs, 4) == 30
    assert bin_bound(costs, 4) == 30


@given(
    costs=costs_strategy(max_items=40),
    tokens=st.data(),
    ranks=st.integers(1, 5),
    cap=st.integers(20, 60),
    sync=st.sampled_from(["step", "micro_batch", "layer"]),
)
def test_micro_batch_caps_are_hard(costs: list[int], tokens: st.DataObject, ranks: int, cap: int, sync: str) -> None:
    lengths = tokens.draw(st.lists(st.integers(0, 20), min_size=len(costs), max_size=len(costs)))
    problem = problem_of(costs, ranks, tokens=lengths, max_tokens_per_micro_batch=cap, sync=sync)
    assignment = partition(problem, OURS)
    micro_batches = int(assignment.micro_batch.max(initial=0)) + 1
    held = np.zeros((micro_batches, ranks), dtype=np.int64)
    np.add.at(held, (assignment.micro_batch, assignment.rank), problem.tokens)
    assert held.max(initial=0) <= cap
    assert micro_batches <= max(1, -(-len(costs) // ranks))


@given(costs=costs_strategy(max_items=40), ranks=st.integers(1, 5), cap=st.integers(40, 60))
def test_rank_caps_are_hard_or_refused(costs: list[int], ranks: int, cap: int) -> None:
    lengths = [1 + cost % 20 for cost in costs]
    problem = problem_of(costs, ranks, tokens=lengths, max_tokens_per_rank=cap)
    try:
        assignment = partition(problem, OURS)
    except InfeasibleError:
        assert sum(lengths) > ranks * (cap - 20)  # best fit leaves less than the largest sample on every rank
    else:
        assert np.bincount(assignment.rank, weights=problem.tokens, minlength=ranks).max() <= cap


def test_micro_batches_are_as_few_as_fit() -> None:
    problem = problem_of([6, 6, 6, 4, 4, 4], 1, max_tokens_per_micro_batch=10)
    assert partition(problem, OURS).micro_batch.max() == 2


def test_long_samples_share_a_micro_batch() -> None:
    """Two dominating samples meet in one micro-batch instead of holding up two."""
    problem = problem_of([1000, 990, *[10] * 20], 2, tokens=[100, 100, *[20] * 20], max_tokens_per_micro_batch=160)
    assignment = partition(problem, OURS)
    assert assignment.micro_batch[0] == assignment.micro_batch[1]
    assert assignment.rank[0] != assignment.rank[1]


def test_bins_of_similar_load_share_a_micro_batch() -> None:
    """Bins filled to 16, 15, 12 and 11 meet as (16, 15) and (12, 11), not as they were filled."""
    problem = problem_of(
        [12, 8, 8, 15, 10, 1], 2, tokens=[4, 5, 6, 1, 2, 6], max_tokens_per_micro_batch=8, micro_batches=2
    )
    assignment = partition(problem, OURS)
    load = np.zeros((2, 2), dtype=np.int64)
    np.add.at(load, (assignment.micro_batch, assignment.rank), problem.cost_ns)
    assert load.max(axis=1).sum() == sorted(load.ravel())[3] + sorted(load.ravel())[1] == 30


def test_an_exchange_is_legal_for_both_ranks() -> None:
    """Evening 18 and 12 would swap the 9 for the 6, but the giver has no room for its 9 tokens."""
    problem = problem_of([9, 9, 6, 6], 2, tokens=[1, 9, 9, 1], max_tokens_per_rank=10)
    assignment = partition(problem, OURS)
    assert np.bincount(assignment.rank, weights=problem.tokens).max() <= 10


def test_with_sync_step_only_totals_count() -> None:
    problem = problem_of([9, 1, 5, 5], 2, tokens=[1, 1, 1, 1], max_tokens_per_micro_batch=1, sync="step")
    assignment = partition(problem, OURS)
    assert np.bincount(assignment.rank, weights=problem.cost_ns).tolist() == [10, 10]


def test_history_is_made_up_for() -> None:
    problem = problem_of([10] * 6, 3, sync="step", start_ns=np.array([40, 0, 20]))
    assert np.bincount(partition(problem, OURS).rank, minlength=3).tolist() == [0, 4, 2]


def test_a_rank_far_behind_gets_nothing() -> None:
    problem = problem_of([1] * 8, 2, sync="step", start_ns=np.array([10**12, 0]))
    assert (partition(problem, OURS).rank == 1).all()


def test_slow_ranks_get_less() -> None:
    problem = problem_of([1] * 60, 3, rank_speed=np.array([1.0, 0.5, 1.5]))
    assert np.bincount(partition(problem, OURS).rank).tolist() == [20, 10, 30]


@given(costs=costs_strategy(max_items=30, max_cost=10**6), speeds=st.lists(st.floats(0.25, 4), min_size=1, max_size=5))
def test_bound_holds_for_unequal_speeds(costs: list[int], speeds: list[float]) -> None:
    speed = np.array(speeds)
    problem = problem_of(costs, len(speeds), rank_speed=speed)
    time = np.bincount(partition(problem, OURS).rank, weights=problem.cost_ns, minlength=len(speeds)) / speed
    assert time.max() >= bin_bound(problem.cost_ns, len(speeds), speed=speed) * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [1, 3, 32])
def test_no_samples(ranks: int) -> None:
    assert len(partition(problem_of([], ranks), OURS).rank) == 0


def test_heavy_tails_end_close_to_the_bound() -> None:
    rng = np.random.default_rng(0)
    costs = np.rint(1e6 * rng.pareto(1.5, 512) + 1e6).astype(np.int64).tolist()
    problem = problem_of(costs, 32)
    load = np.bincount(partition(problem, OURS).rank, weights=problem.cost_ns)
    assert load.max() <= bin_bound(problem.cost_ns, 32) * 1.001
