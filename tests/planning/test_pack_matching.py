"""Packs into steps: alike on all ranks, each once, in an order that stays random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import SettingsError
from trimtab.planning.packing.metrics import dist_ratio
from trimtab.planning.packing.randomness import order_randomness
from trimtab.planning.packing.step_matching import match_steps
from trimtab.planning.packing.stretches import Stretch, deal_after


def loads(packs: int, seed: int = 0) -> np.ndarray:
    """Tiles, tokens and cost of packs, in part of each other: int64 [P, 3]."""
    rng = np.random.default_rng(seed)
    tiles = rng.choice([5, 6, 8, 9], size=packs)
    tokens = tiles * 256 + rng.integers(100, 900, packs)
    return np.stack([tiles, tokens, 302 * tiles + tokens], axis=1).astype(np.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=40)
@given(
    packs=st.integers(0, 80),
    ranks=st.integers(1, 9),
    window=st.integers(1, 7),
    multiple=st.integers(1, 4),
)
def test_every_pack_runs_once_and_ranks_run_equally_many(packs: int, ranks: int, window: int, multiple: int) -> None:
    groups = match_steps(loads(packs), ranks, window, rng(), multiple=multiple)
    assert sorted(groups.real().tolist()) == list(range(packs))
    assert groups.pack.shape == groups.zero_loss.shape == (len(groups), ranks)
    assert len(groups) % multiple == 0
    assert len(groups) == -(-packs // (ranks * multiple)) * multiple


@settings(max_examples=40)
@given(packs=st.integers(1, 80), ranks=st.integers(1, 9), window=st.integers(1, 7))
def test_padding_packs_stand_at_the_end_only(packs: int, ranks: int, window: int) -> None:
    zero_loss = match_steps(loads(packs), ranks, window, rng()).zero_loss.ravel()
    assert not zero_loss[:packs].any()
    assert zero_loss[packs:].all()


def test_a_padding_pack_copies_the_lightest_of_its_step() -> None:
    columns = np.array([[1, 50], [1, 40], [1, 10]])
    groups = match_steps(columns, 4, 1, rng())
    assert groups.pack.tolist() == [[0, 1, 2, 2]]
    assert groups.zero_loss.tolist() == [[False, False, False, True]]


def test_the_step_that_is_padded_has_the_lightest_packs_of_its_window() -> None:
    columns = rng(3).permutation(8 * 6 + 3)[:, None]
    groups = match_steps(columns, 8, 3, rng())
    last_window = columns[8 * 3 :, 0]
    assert sorted(columns[groups.pack[-1, :3], 0].tolist()) == np.sort(last_window)[:3].tolist()


@pytest.mark.parametrize("ranks", [8, 32])
def test_ranks_of_a_step_are_alike_in_every_load(ranks: int) -> None:
    columns = loads(ranks * 640)
    groups = match_steps(columns, ranks, 64, rng())
    for load in columns.T:
        assert dist_ratio(load[groups.pack]) < 0.02
        assert dist_ratio(load[groups.pack]) < dist_ratio(load.reshape(-1, ranks)) / 10


def test_loads_that_do_not_go_together_are_matched_both() -> None:
    """Sorted by one alone, the other would be as uneven as at random (0.4)."""
    draw = rng(1)
    columns = np.stack([draw.integers(1, 1000, 8 * 640), draw.integers(1, 1000, 8 * 640)], axis=1)
    groups = match_steps(columns, 8, 64, rng())
    assert max(dist_ratio(load[groups.pack]) for load in columns.T) < 0.2


def test_a_larger_window_is_more_even_and_moves_packs_further() -> None:
    columns = loads(8 * 512)
    dist, moved = [], []
    for window in (1, 4, 16, 64):
        groups = match_steps(columns, 8, window, rng())
        dist.append(dist_ratio(columns[:, 1][groups.pack]))
        moved.append(order_randomness(groups, columns[:, 1]).displacement)
    assert dist == sorted(dist, reverse=True)
    assert moved == sorted(moved)
    assert moved[0] == 0
    assert moved[-1] < 64 / 512


def test_steps_do_not_run_from_short_to_long() -> None:
    """A published sampler does: correlation 0.74 of step and length."""
    columns = loads(8 * 512)
    randomness = order_randomness(match_steps(columns, 8, 64, rng()), columns[:, 1])
    assert abs(randomness.correlation) < 0.15
    assert 1 < randomness.spread < np.sqrt(8) + 0.1
    unmatched = order_randomness(match_steps(columns, 8, 1, rng()), columns[:, 1])
    assert unmatched.spread == pytest.approx(1, abs=0.15)


def test_sorted_order_is_recognised_as_such() -> None:
    columns = loads(8 * 64)
    columns = columns[np.argsort(columns[:, 1])]
    assert order_randomness(match_steps(columns, 8, 1, rng()), columns[:, 1]).correlation > 0.95


def test_no_rank_always_gets_the_largest() -> None:
    columns = loads(8 * 640)
    of_rank = columns[:, 2][match_steps(columns, 8, 64, rng()).pack].sum(axis=0)
    assert of_rank.max() / of_rank.mean() < 1.001


@settings(max_examples=40)
@given(
    packs=st.integers(1, 90),
    stretches=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(0, 4)), max_size=3),
    ranks=st.integers(1, 6),
)
def test_what_earlier_stretches_left_is_dealt_once(
    packs: int, stretches: list[tuple[int, int, int]], ranks: int
) -> None:
    columns, past, seen = loads(packs), [], []
    for count, micro_batches, steps in stretches:
        groups = deal_after(columns, past, ranks=count, micro_batches=micro_batches, window=3, seed=[7])
        taken = groups.real()[: len(groups.real()) - len(groups.real(first=steps * micro_batches))]
        seen += taken.tolist()
        past.append(Stretch(count, micro_batches, steps))
    groups = deal_after(columns, past, ranks=ranks, micro_batches=1, window=3, seed=[7])
    assert sorted(seen + groups.real().tolist()) == list(range(packs))


@pytest.mark.parametrize("name", ["ranks", "window", "multiple"])
def test_numbers_below_one_are_refused(name: str) -> None:
    arguments = {"ranks": 2, "window": 2, "multiple": 1} | {name: 0}
    with pytest.raises(SettingsError, match=f"{name}=0 must be at least 1"):
        match_steps(loads(4), arguments["ranks"], arguments["window"], rng(), multiple=arguments["multiple"])
