"""Longest first: in blocks as on a heap, and under caps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import costs_strategy

from trimtab.planning.best_fit import best_fit
from trimtab.planning.bins import Bins, longest_first
from trimtab.planning.lpt import lpt
from trimtab.planning.lpt_blocks import lpt_blocks


def textbook_loads(costs: list[int], start: list[int]) -> list[int]:
    load = list(start)
    for cost in sorted(costs, reverse=True):
        load[load.index(min(load))] += cost
    return sorted(load)


@given(costs=costs_strategy(max_items=200), start=st.lists(st.integers(0, 10**6), min_size=1, max_size=90))
def test_loads_are_those_of_the_textbook(costs: list[int], start: list[int]) -> None:
    cost = np.sort(np.array(costs, dtype=np.int64))[::-1]
    bins = Bins(cost=cost, tokens=cost, count=len(start), start=np.array(start, dtype=np.int64))
    bin_of = lpt(bins)
    assert bin_of is not None
    assert sorted(bins.times(bin_of).tolist()) == textbook_loads(costs, start)


@given(costs=costs_strategy(max_items=200), bins=st.integers(1, 90))
def test_blocks_place_a_first_part_as_the_textbook_does(costs: list[int], bins: int) -> None:
    cost = np.sort(np.array(costs, dtype=np.int64))[::-1]
    load = np.zeros(bins, dtype=np.int64)
    chosen = lpt_blocks(cost, load)
    assert sorted(load.tolist()) == textbook_loads(cost[: len(chosen)].tolist(), [0] * bins)
    assert np.bincount(chosen, weights=cost[: len(chosen)], minlength=bins).tolist() == load.tolist()


def test_blocks_give_up_where_every_item_dwarfs_the_next() -> None:
    cost = np.array([2 ** (60 - k) for k in range(40)], dtype=np.int64)
    assert len(lpt_blocks(cost, np.zeros(2000, dtype=np.int64))) == 40
    assert len(lpt_blocks(np.ones(100, dtype=np.int64), np.arange(0, 2000, 10))) < 100


def test_loads_beyond_64_bits_when_keyed_by_bin() -> None:
    cost = np.full(64, 2**55, dtype=np.int64)
    bins = Bins(cost=cost, tokens=cost, count=32)
    bin_of = lpt(bins)
    assert bin_of is not None
    assert np.bincount(bin_of).tolist() == [2] * 32


@pytest.mark.parametrize("equal_counts", [False, True])
def test_no_room_is_said_not_broken(equal_counts: bool) -> None:
    sixes = np.full(3, 6)
    assert lpt(Bins(cost=sixes, tokens=sixes, count=2, max_tokens=10, equal_counts=equal_counts)) is None
    assert best_fit(sixes, 2, 10) is None


def test_best_fit_packs_what_balancing_cannot() -> None:
    """Longest first ends at 9 and 8 of 10 with a 3 left over; best fit puts the fives together."""
    tokens = np.array([5, 5, 4, 3, 3])
    assert lpt(Bins(cost=tokens, tokens=tokens, count=2, max_tokens=10)) is None
    assert best_fit(tokens, 2, 10) is not None


def test_equal_costs_are_ordered_by_tokens_so_that_caps_see_one_order() -> None:
    assert longest_first(np.array([5, 5, 7]), np.array([1, 9, 1])).tolist() == [2, 1, 0]
