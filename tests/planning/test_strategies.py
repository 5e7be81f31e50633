"""What every strategy keeps, ours and the published ones alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import costs_strategy, problem_of

from trimtab.errors import SettingsError
from trimtab.planning.bounds import bin_bound
from trimtab.planning.partition import partition
from trimtab.planning.peers.as_is import contiguous_ranks
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.strategies import STRATEGIES, strategy_named

WHOLE = [name for name, strategy in STRATEGIES.items() if not strategy.shards]
every_strategy = pytest.mark.parametrize("name", WHOLE)
balancing = pytest.mark.parametrize("name", [name for name in WHOLE if name not in ("as-is", "loongforge")])


def loads(problem: PartitionProblem, assignment: Assignment) -> np.ndarray:
    result = np.zeros(problem.ranks, dtype=np.int64)
    np.add.at(result, assignment.rank, problem.cost_ns)
    return result


@every_strategy
@given(costs=costs_strategy(), ranks=st.integers(1, 9))
def test_every_sample_gets_one_legal_rank(name: str, costs: list[int], ranks: int) -> None:
    problem = problem_of(costs, ranks)
    assignment = partition(problem, strategy_named(name))
    assert assignment.rank.shape == assignment.micro_batch.shape == (len(costs),)
    assert ((assignment.rank >= 0) & (assignment.rank < ranks)).all()
    assert (assignment.micro_batch == 0).all()


@every_strategy
@given(costs=costs_strategy(), ranks=st.integers(1, 9))
def test_no_assignment_beats_the_bound(name: str, costs: list[int], ranks: int) -> None:
    problem = problem_of(costs, ranks)
    assert loads(problem, partition(problem, strategy_named(name))).max() >= bin_bound(problem.cost_ns, ranks)


@balancing
@given(costs=costs_strategy(), ranks=st.integers(1, 9), data=st.data())
def test_input_order_changes_no_load(name: str, costs: list[int], ranks: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(costs))
    strategy = strategy_named(name)
    one, other = problem_of(costs, ranks), problem_of(shuffled, ranks)
    assert sorted(loads(one, partition(one, strategy))) == sorted(loads(other, partition(other, strategy)))


@every_strategy
@pytest.mark.parametrize("cost", [0, 7])
def test_equal_and_zero_costs_spread_evenly(name: str, cost: int) -> None:
    problem = problem_of([cost] * 24, 8)
    assert (loads(problem, partition(problem, strategy_named(name))) == 3 * cost).all()


@every_strategy
def test_fewer_samples_than_ranks_leave_ranks_empty(name: str) -> None:
    problem = problem_of([5, 3, 4], 8)
    assert loads(problem, partition(problem, strategy_named(name))).max() == 5


@every_strategy
def test_one_rank_takes_everything(name: str) -> None:
    assert (partition(problem_of([5, 3, 4], 1), strategy_named(name)).rank == 0).all()


@every_strategy
def test_sums_beyond_32_bits(name: str) -> None:
    problem = problem_of([2**40 + row for row in range(64)], 4)
    assert loads(problem, partition(problem, strategy_named(name))).sum() == 64 * 2**40 + 63 * 32


@pytest.mark.parametrize("name", ["equal-count", "whole-sample"])
@given(costs=costs_strategy(), ranks=st.integers(1, 9))
def test_equal_counts_differ_by_one_at_most(name: str, costs: list[int], ranks: int) -> None:
    problem = problem_of(costs, ranks, equal_counts=True)
    counts = np.bincount(partition(problem, strategy_named(name)).rank, minlength=ranks)
    assert counts.max() - counts.min() <= 1


@given(costs=costs_strategy(), ranks=st.integers(1, 9))
def test_loongforge_leaves_nearly_even_batches_alone(costs: list[int], ranks: int) -> None:
    problem = problem_of(costs, ranks)
    before = contiguous_ranks(len(costs), ranks)
    at_first = loads(problem, Assignment(rank=before, micro_batch=before))
    if at_first.max(initial=0) <= 1.2 * at_first.mean() * (1 - 1e-9):
        assert (partition(problem, strategy_named("loongforge")).rank == before).all()


def test_loongforge_leaves_a_dominating_sample_alone_and_we_do_not() -> None:
    problem = problem_of([100, 10, 10, 10, 1, 1, 1, 1], 4)
    ours, theirs = (loads(problem, partition(problem, strategy_named(name))) for name in ("whole-sample", "loongforge"))
    assert theirs.tolist() == [110, 20, 2, 2]
    assert ours.max() == 100


def test_loongforge_exchanges_only_extreme_items() -> None:
    """Longest first leaves 16, 15, 14; giving up the 9 of the first rank helps nothing, so it stops there."""
    problem = problem_of([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0], 3)
    assert loads(problem, partition(problem, strategy_named("loongforge"))).tolist() == [16, 15, 14]


def test_a_strategy_refuses_what_it_would_ignore() -> None:
    capped = problem_of([5, 3, 4], 2, max_tokens_per_rank=9)
    with pytest.raises(SettingsError, match=r"'karmarkar-karp' does not honour rank_cap"):
        partition(capped, strategy_named("karmarkar-karp"))


def test_an_unknown_strategy_is_named_with_the_choices() -> None:
    with pytest.raises(SettingsError, match=r"'lpt' is unknown; choose one of as-is, equal-count"):
        strategy_named("lpt")
