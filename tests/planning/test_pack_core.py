"""Packs: every sample once, no cap passed, and a lower bound that is one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from trimtab.errors import MetadataError, SettingsError
from trimtab.planning.packing.best_fit_decreasing import best_fit
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.lower_bound import lower_bound
from trimtab.planning.packing.next_fit import next_fit
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.pool import PORTFOLIO, pack_pool
from trimtab.planning.packing.pools import PoolCarry, pack_next_pool
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.settings import PackSettings

CAPS = (7, 20)


@st.composite
def problems(draw: st.DrawFn, most: int = 60, oversized: bool = True) -> PackProblem:
    """Samples of 2 capped loads and a third that only matches packs."""
    above = 3 if oversized else 0
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, CAPS[0] + above), st.integers(0, CAPS[1] + above), st.integers(0, 1 << 40)),
            min_size=1,
            max_size=most,
        )
    )
    return PackProblem(
        loads=np.array(rows, dtype=np.int64), resources=("tiles", "tokens", "cost_ns"), caps=(*CAPS, None)
    )


methods = st.sampled_from(["best", "isf"])


@settings(max_examples=40)
@given(problem=problems(), method=methods, pool=st.integers(2, 20), epoch=st.integers(0, 2))
def test_every_sample_is_in_one_pack_or_listed_as_oversized(
    problem: PackProblem, method: str, pool: int, epoch: int
) -> None:
    packs = pack_epoch(problem, PackSettings(method=method, pool=pool), seed=3, epoch=epoch)  # type: ignore[arg-type]
    together = np.concatenate([packs.rows, problem.oversized()])
    assert sorted(together.tolist()) == list(range(len(problem)))
    assert (packs.counts > 0).all()


@settings(max_examples=40)
@given(problem=problems(), method=methods, pool=st.integers(2, 20))
def test_no_pack_passes_a_cap(problem: PackProblem, method: str, pool: int) -> None:
    packs = pack_epoch(problem, PackSettings(method=method, pool=pool), seed=3, epoch=0)  # type: ignore[arg-type]
    assert (packs.sums(problem.loads)[:, :2] <= np.array(CAPS)).all()


@settings(max_examples=40)
@given(problem=problems(most=40, oversized=False), name=st.sampled_from(list(PORTFOLIO)))
def test_every_algorithm_of_the_portfolio_packs_a_pool(problem: PackProblem, name: str) -> None:
    loads = problem.loads[:, :2]
    packs = PORTFOLIO[name](loads, problem.limits, np.random.default_rng(0))
    assert sorted(packs.rows.tolist()) == list(range(len(loads)))
    assert (packs.sums(loads) <= problem.limits).all()
    assert len(packs) >= lower_bound(loads, problem.limits)


@settings(max_examples=40)
@given(problem=problems(most=8, oversized=False))
def test_the_lower_bound_never_exceeds_the_optimum(problem: PackProblem) -> None:
    loads = problem.loads[:, :2]
    optimum = fewest_packs(loads, problem.limits)
    assert lower_bound(loads, problem.limits) <= optimum
    assert optimum <= len(pack_pool(loads, problem.limits, np.random.default_rng(0)))


@pytest.mark.parametrize("seed", range(3))
def test_the_lower_bound_never_exceeds_what_an_exact_solver_proves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loads = np.stack([rng.integers(1, 6, 12), rng.integers(100, 900, 12)], axis=1).astype(np.int64)
    caps = np.array([9, 1400], dtype=np.int64)
    assert lower_bound(loads, caps) <= fewest_packs_by_highs(loads, caps, len(loads))


def test_the_lower_bound_sees_more_than_volume() -> None:
    """Six samples of 5 against a cap of 9: 30 / 9 needs 4 packs by volume, 6 in truth."""
    assert lower_bound(np.full((6, 1), 5, dtype=np.int64), np.array([9])) == 6
    assert lower_bound(np.array([[6], [6], [4], [4], [4]], dtype=np.int64), np.array([9])) == 4
    assert lower_bound(np.zeros((3, 2), dtype=np.int64), np.array([9, 9])) == 1
    assert lower_bound(np.zeros((0, 2), dtype=np.int64), np.array([9, 9])) == 0


@settings(max_examples=40)
@given(problem=problems(oversized=False))
def test_next_fit_hops_as_a_loop_would(problem: PackProblem) -> None:
    loads = problem.loads[:, :2]
    offsets, held = [0], np.zeros(2, dtype=np.int64)
    for row, load in enumerate(loads):
        if ((held + load) > problem.limits).any():
            offsets.append(row)
            held = np.zeros(2, dtype=np.int64)
        held = held + load
    assert next_fit(loads, problem.limits).offsets.tolist() == [*offsets, len(loads)]


@settings(max_examples=40)
@given(problem=problems(oversized=False), weights=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_best_fit_takes_the_fullest_pack_that_holds_the_sample(problem: PackProblem, weights: tuple[int, int]) -> None:
    """Against the definition, written plainly; the joint numbers of the fast version must not confuse two loads."""
    loads, weight = problem.loads[:, :2], np.array(weights, dtype=np.int64)
    free: list[NDArray[np.int64]] = []
    placed = {}
    order = np.random.default_rng(0).permutation(len(loads))
    for row in order.tolist():
        fits = [(int(room @ weight), pack) for pack, room in enumerate(free) if (loads[row] <= room).all()]
        pack = min(fits)[1] if fits else len(free)
        if pack == len(free):
            free.append(problem.limits)
        free[pack] = free[pack] - loads[row]
        placed[row] = pack
    packs = best_fit(loads, problem.limits, weight, order)
    assert {row: pack for pack in range(len(packs)) for row in packs[pack].tolist()} == placed


def test_packs_of_large_numbers_do_not_overflow() -> None:
    """Caps in nanoseconds times several loads pass 64 bits in the joint number of best fit."""
    loads = np.full((10, 3), (1 << 40) - 1, dtype=np.int64)
    packs = pack_pool(loads, np.full(3, 1 << 41, dtype=np.int64), np.random.default_rng(0))
    assert packs.counts.tolist() == [2] * 5


@pytest.mark.parametrize("tiles", [5, 900])
def test_every_epoch_has_fresh_packs_and_each_the_same_whenever_asked(tiles: int) -> None:
    """Even where one pool holds the whole dataset, and hardly two samples are of one size."""
    rng = np.random.default_rng(0)
    problem = PackProblem.from_columns(
        {"tiles": rng.integers(1, tiles + 1, 200), "tokens": rng.integers(1, 900, 200)},
        {"tiles": 3 * tiles, "tokens": 2000},
    )

    def compositions(epoch: int) -> list[tuple[int, ...]]:
        packs = pack_epoch(problem, PackSettings(), seed=1, epoch=epoch)
        return [tuple(sorted(packs[index].tolist())) for index in range(len(packs))]

    assert compositions(0) == compositions(0)
    assert len(set(compositions(0)) & set(compositions(1))) < len(compositions(0)) / 5


def test_text_only_samples_are_charged_no_tile() -> None:
    """The published data code charges a dummy tile to each; then 18 of these would fill a pack."""
    problem = PackProblem.from_columns(
        {"tiles": np.zeros(100, dtype=np.int64), "tokens": np.full(100, 10)}, {"tiles": 18, "tokens": 1000}
    )
    assert len(pack_epoch(problem, PackSettings(), seed=0, epoch=0)) == 1


def test_what_packs_badly_waits_for_the_next_pool() -> None:
    """Pools of 64 leave half-empty packs each; carried over, few remain."""
    rng = np.random.default_rng(0)
    tiles = rng.choice([1, 3, 4, 5], p=[0.2, 0.16, 0.02, 0.62], size=6400)
    problem = PackProblem.from_columns({"tiles": tiles}, {"tiles": 18})
    packs = pack_epoch(problem, PackSettings(pool=64), seed=0, epoch=0)
    alone = sum(len(pack_pool(problem.loads[begin : begin + 64], problem.limits, rng)) for begin in range(0, 6400, 64))
    bound = lower_bound(problem.loads, problem.limits)
    assert len(packs) - bound < (alone - bound) / 2


def test_no_sample_waits_twice() -> None:
    """Samples just above half a pack leave it half empty in every pool."""
    loads = np.array([[51], [52], [53], *([50],) * 62], dtype=np.int64)
    carry = PoolCarry(rows=np.array([0, 1]))
    packs = pack_next_pool(loads, np.array([100]), np.arange(2, 65), carry, np.random.default_rng(0), last=False)
    assert carry.rows.tolist() == [2]
    assert sorted([*packs.rows.tolist(), 2]) == list(range(65))


def test_packs_can_be_empty_joined_and_taken() -> None:
    packs = Packs(rows=np.array([4, 5, 6]), offsets=np.array([0, 2, 2, 3]))
    load = np.array([0, 0, 0, 0, 1, 2, 4])
    assert packs.sums(load).tolist() == [3, 0, 4]
    assert packs.largest(load).tolist() == [2, 0, 4]
    turned = packs.take(np.array([2, 1, 0, 2]))
    assert [turned[index].tolist() for index in range(4)] == [[6], [], [4, 5], [6]]
    assert len(Packs.joined([])) == 0


@pytest.mark.parametrize(
    ("columns", "caps", "message"),
    [
        ({"tokens": [1]}, {"tiles": 3}, "'tiles', which is none of tokens"),
        ({"tokens": [1]}, {}, "no cap is set: cap at least one of tokens"),
        ({"tokens": [1]}, {"tokens": 0}, "the cap tokens=0 must be at least 1"),
    ],
)
def test_caps_that_make_no_sense_are_refused(columns: dict, caps: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        PackProblem.from_columns({name: np.array(column) for name, column in columns.items()}, caps)


def test_fractions_never_pass_a_cap_and_only_numbers_count() -> None:
    problem = PackProblem.from_columns({"a": np.array([2.9, 2.9, 2.0])}, {"a": 5})
    assert problem.loads[:, 0].tolist() == [3, 3, 2]
    for bad in (np.nan, np.inf):
        with pytest.raises(MetadataError, match=r"sample in row 1: a=(nan|inf) must be a finite number"):
            PackProblem.from_columns({"a": np.array([1.0, bad])}, {"a": 5})


def test_a_negative_load_is_refused_by_name() -> None:
    with pytest.raises(MetadataError, match="row 1: tokens=-2 must not be negative"):
        PackProblem.from_columns({"tokens": np.array([1, -2])}, {"tokens": 9})


@pytest.mark.parametrize(("name", "value"), [("method", "ffd"), ("pool", 1), ("window", 0), ("isf_rounds", 0)])
def test_settings_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        PackSettings(**{name: value})  # type: ignore[arg-type]


def fewest_packs(loads: NDArray[np.int64], caps: NDArray[np.int64]) -> int:
    """By trying all partitions: the pack of the first sample left is any subset that fits."""

    @cache
    def fewest(left: int) -> int:
        if not left:
            return 0
        first = left & -left
        others = left ^ first
        best, subset = len(loads), others
        while True:
            pack = [row for row in range(len(loads)) if (subset | first) >> row & 1]
            if (loads[pack].sum(axis=0) <= caps).all():
                best = min(best, 1 + fewest(others ^ subset))
            if not subset:
                return best
            subset = (subset - 1) & others

    return fewest((1 << len(loads)) - 1)


def fewest_packs_by_highs(loads: NDArray[np.int64], caps: NDArray[np.int64], bins: int) -> int:
    """Bin packing as an integer program: x[i, b] sample in pack, y[b] pack used."""
    samples, resources = loads.shape
    variables = samples * bins + bins
    once = np.zeros((samples, variables))
    fits = np.zeros((bins * resources, variables))
    for row in range(samples):
        once[row, row * bins : (row + 1) * bins] = 1
        for pack in range(bins):
            fits[pack * resources : (pack + 1) * resources, row * bins + pack] = loads[row]
    for pack in range(bins):
        fits[pack * resources : (pack + 1) * resources, samples * bins + pack] = -caps
    cost = np.r_[np.zeros(samples * bins), np.ones(bins)]
    solved = milp(
        cost,
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(fits, -np.inf, 0)],
        integrality=np.ones(variables),
        bounds=Bounds(0, 1),
    )
    assert solved.success
    return round(solved.fun)
