"""Published ways to cut a pipeline, as described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stage_cases import random_profile

from trimtab.planning.min_max import least_largest, run_sums
from trimtab.planning.peers import published_search, uniform_layers, uniform_parameters
from trimtab.planning.stage_problem import StageProblem, plan_recomputing
from trimtab.schema.stages import LayerProfile

GB = 10**9


def problem_of(profile: LayerProfile, ranks: int = 3, memory_bytes: int = GB) -> StageProblem:
    return StageProblem(profile=profile, ranks=ranks, micro_batches=6, memory_bytes=memory_bytes)


def test_uniform_layers_counts_transformer_layers_only() -> None:
    profile = replace(
        random_profile(0, 8),
        kinds=("embedding", "vision", "vision", "projector", "embedding", "language", "language", "head"),
    )
    bounds = uniform_layers.solve(problem_of(profile, ranks=2)).bounds
    assert bounds[1] in (3, 4, 5)


def test_uniform_parameters_evens_parameters() -> None:
    profile = replace(random_profile(0, 6), parameters=np.array([9, 1, 1, 1, 1, 1], dtype=np.int64))
    assert uniform_parameters.solve(problem_of(profile, ranks=2)).bounds == (0, 1, 6)


def test_least_largest_is_the_least_and_even_among_equals() -> None:
    weights = np.array([4, 1, 1, 1, 1, 0], dtype=np.int64)
    assert least_largest(run_sums(weights, 3)) == (4.0, (0, 1, 3, 6))
    assert least_largest(run_sums(weights[:2], 3)) == (np.inf, ())


def test_the_anchor_evens_forward_times() -> None:
    assert published_search.anchor(np.array([3, 1, 1, 1, 1, 1, 1], dtype=np.int64), 3) == (0, 1, 4, 7)
    assert published_search.anchor(np.array([1, 1, 9], dtype=np.int64), 3) == (0, 1, 2, 3)


def test_the_search_stays_within_its_radius_and_runs_the_best() -> None:
    profile = random_profile(3, 12)
    problem = problem_of(profile)
    middle = published_search.anchor(profile.forward_ns, 3)
    assert published_search.solve(problem, radius=0).bounds == middle
    measured = []

    def measure(plan: object) -> float:
        measured.append(plan)
        return -float(len(measured))

    last = published_search.solve(problem, measure=measure)
    assert len(measured) == published_search.TRIED
    assert last.bounds == measured[-1].bounds
    assert all(abs(cut - near) <= 1 for cut, near in zip(last.bounds, middle, strict=True))


def test_free_memory_is_spent_on_layers_that_need_not_recompute() -> None:
    profile = random_profile(3, 12)
    problem = problem_of(profile)
    bounds = published_search.solve(problem).bounds
    peaks = [
        max(m.peak for m in plan_recomputing(problem, bounds, np.full(12, chosen), "").memory)
        for chosen in (True, False)
    ]
    problem = replace(problem, memory_bytes=sum(peaks) // 2)
    plan = published_search.solve(problem)
    assert plan.fits
    all_recompute = plan_recomputing(problem, plan.bounds, np.ones(12, dtype=np.bool_), "")
    assert 0 < sum(map(len, plan.recompute)) < sum(map(len, all_recompute.recompute))
    assert plan.step_ns < all_recompute.step_ns


@pytest.mark.parametrize("ranks", [12, 16])
def test_many_stages_do_not_try_every_combination(ranks: int) -> None:
    profile = random_profile(0, 40)
    assert published_search.solve(problem_of(profile, ranks=ranks)).fits
