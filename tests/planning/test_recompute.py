"""Recomputation under a budget: the least time there is, never over the budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from stage_cases import random_profile

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.explain_stages import explain_recompute
from trimtab.planning.recompute import Frontier, choose, made_choice, plan_recompute


@pytest.mark.parametrize("seed", range(60))
def test_choices_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    profile = random_profile(seed, 7, alike=bool(seed % 2))
    rows = np.arange(7, dtype=np.int64)
    copies = rng.integers(1, 4, 7) if seed % 3 else np.full(7, 2, dtype=np.int64)
    every = [made_choice(profile, rows, copies, np.array(each)) for each in product((False, True), repeat=7)]
    peaks = [each.activation_bytes + each.transient_bytes for each in every]
    budget = int(rng.integers(min(peaks) - 20, max(peaks)))
    best = min((each.recompute_ns for each, peak in zip(every, peaks, strict=True) if peak <= budget), default=None)
    found = choose(profile, rows, copies, budget)
    if found is None:
        assert best is None
        return
    assert found.exact
    assert found.recompute_ns == best
    assert found.activation_bytes + found.transient_bytes <= budget


def test_many_different_layers_stay_within_the_budget_and_say_so() -> None:
    rng = np.random.default_rng(0)
    profile = random_profile(0, 60)
    profile = replace(
        profile,
        activation_bytes=profile.recomputed_bytes + rng.integers(10**6, 10**9, 60),
        recompute_ns=rng.integers(10**6, 10**9, 60),
        workspace_bytes=np.zeros(60, dtype=np.int64),
    )
    rows, copies = np.arange(60, dtype=np.int64), np.ones(60, dtype=np.int64)
    extra = profile.activation_bytes - profile.recomputed_bytes
    budget = int(extra.sum() // 2 + extra.max())
    found = choose(profile, rows, copies, budget)
    assert found is not None
    assert not found.exact
    assert found.activation_bytes + found.transient_bytes <= budget
    by_worth = np.argsort(-profile.recompute_ns / extra)
    greedy = by_worth[np.cumsum(extra[by_worth]) <= extra.sum() // 2 - profile.recomputed_bytes.sum()]
    assert found.recompute_ns <= 1.01 * (profile.recompute_ns.sum() - profile.recompute_ns[greedy].sum())


def test_a_frontier_holds_only_what_nothing_dominates() -> None:
    frontier = Frontier.empty().add(5, 3, must_keep=False, limit=100).add(5, 4, must_keep=False, limit=100)
    assert frontier.extra_bytes.tolist() == [0, 5, 10]
    assert frontier.saved_ns.tolist() == [0, 4, 7]
    assert frontier.most_saved(np.array([-1, 0, 6, 99])).tolist() == [-1, 0, 4, 7]
    assert frontier.add(2, 1, must_keep=True, limit=8).extra_bytes.tolist() == [2, 7]
    assert len(frontier.add(101, 1, must_keep=True, limit=100).extra_bytes) == 0


def test_a_plan_says_what_it_saves() -> None:
    profile = random_profile(1, 9)
    rows, copies = np.arange(9, dtype=np.int64), np.full(9, 2, dtype=np.int64)
    none = made_choice(profile, rows, copies, np.zeros(9, dtype=np.bool_))
    state = int(profile.state_bytes.sum())
    most = state + none.activation_bytes + none.transient_bytes
    plan = plan_recompute(profile, most - 300, in_flight=2)
    assert plan.peak_bytes <= plan.budget_bytes == most - 300
    assert plan.bytes_saved == most - plan.peak_bytes
    everything = profile.recompute_ns[profile.activation_bytes > profile.recomputed_bytes].sum()
    assert plan.time_saved_ns == everything - profile.recompute_ns[plan.recompute].sum()
    assert plan.recomputing == tuple(np.array(profile.names)[plan.recompute])
    assert plan.digest() == plan_recompute(profile, most - 300, in_flight=2).digest()
    lines = explain_recompute(plan, profile)
    assert "of 9 layers" in lines[0]
    assert plan_recompute(profile, most, in_flight=2).recomputing == ()
    assert explain_recompute(plan_recompute(profile, most, in_flight=2), profile)[0].startswith("recomputes none of 9")


def test_budgets_that_cannot_be_met_name_the_smallest_that_can() -> None:
    profile = random_profile(1, 9)
    with pytest.raises(InfeasibleError, match="raise it to ") as refused:
        plan_recompute(profile, 10)
    needed = int(str(refused.value).split("raise it to ")[1].split(",")[0])
    assert plan_recompute(profile, needed).peak_bytes <= needed
    with pytest.raises(InfeasibleError):
        plan_recompute(profile, needed - 1)
    with pytest.raises(SettingsError, match="memory_bytes=0 must be at least 1"):
        plan_recompute(profile, 0)
    with pytest.raises(SettingsError, match="in_flight=0 must be at least 1"):
        plan_recompute(profile, needed, in_flight=0)
    with pytest.raises(SettingsError, match="state_bytes=-1 must be at least 0"):
        plan_recompute(profile, needed, state_bytes=-1)
