"""Stage plans: the best there is, never over the cap, and what to change where none fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stage_cases import every_partition, every_plan, random_profile

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning import stage_search
from trimtab.planning.stage_memory import least_memory
from trimtab.planning.stage_problem import StageProblem, plan_of_bounds, plan_recomputing
from trimtab.planning.stages import PEERS, plan_peers, plan_stages
from trimtab.schema.stages import StagePlan

GB = 10**9


def best_step(plans: Iterable[StagePlan | None]) -> int | None:
    return min((plan.step_ns for plan in plans if plan is not None and plan.fits), default=None)


def capped(problem: StageProblem, share: float) -> StageProblem:
    """Under a cap between what its fastest partition takes with every layer recomputed, and with none."""
    bounds = plan_stages(replace(problem, memory_bytes=GB)).bounds
    everything = np.ones(len(problem.profile), dtype=np.bool_)
    low, high = (
        max(memory.peak for memory in plan_recomputing(problem, bounds, chosen, "").memory)
        for chosen in (everything, ~everything)
    )
    return replace(problem, memory_bytes=int(low + share * (high - low)) + 1)


def small_problem(seed: int, **changed: Any) -> StageProblem:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 4))
    layers = int(rng.integers(max(2, ranks), 6))
    profile = random_profile(seed, layers, alike=bool(seed % 2))
    micro_batches = int(rng.integers(1, 9))
    problem = StageProblem(profile=profile, ranks=ranks, micro_batches=micro_batches, memory_bytes=GB)
    return capped(replace(problem, **changed), rng.uniform(-0.05, 1))


@pytest.mark.parametrize("seed", range(40))
def test_joint_plans_equal_brute_force(seed: int) -> None:
    problem = small_problem(seed)
    best = best_step(every_plan(problem))
    if best is None:
        with pytest.raises(InfeasibleError):
            plan_stages(problem)
        return
    plan = plan_stages(problem)
    assert plan.fits
    assert plan.step_ns == plan.lower_bound_ns == best


@pytest.mark.parametrize("seed", range(8))
def test_interleaved_plans_are_the_best_partition(seed: int) -> None:
    profile = random_profile(seed, 5 + seed % 2)
    problem = StageProblem(profile=profile, ranks=2, chunks=2, micro_batches=4, memory_bytes=GB, schedule="interleaved")
    problem = capped(problem, 0.4)
    plan = plan_stages(problem)
    partitions = every_partition(problem)
    assert plan.step_ns == best_step(plan_of_bounds(problem, bounds, "") for bounds in partitions)
    every = best_step(every_plan(problem))
    assert every is not None
    assert plan.lower_bound_ns <= every <= plan.step_ns <= 1.1 * every


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_joint_is_never_worse_than_partition_first(seed: int, schedule: str) -> None:
    rng = np.random.default_rng(seed)
    chunks = 2 if schedule == "interleaved" else 1
    problem = StageProblem(
        profile=random_profile(seed, 9, alike=bool(seed % 2)),
        ranks=3,
        chunks=chunks,
        micro_batches=6,
        memory_bytes=GB,
        schedule=schedule,
    )
    problem = capped(problem, float(rng.uniform(0, 1)))
    plan = plan_stages(problem)
    first = plan_stages(replace(problem, memory_bytes=GB)).bounds
    second = plan_of_bounds(problem, first, "partition first")
    assert second is not None
    assert plan.fits
    assert plan.lower_bound_ns <= plan.step_ns <= second.step_ns
    for peer in plan_peers(problem).values():
        assert not peer.fits or plan.step_ns <= peer.step_ns


@pytest.mark.parametrize("seed", range(20))
def test_interleaved_plans_are_no_slower_than_peers_and_partition_first(seed: int) -> None:
    profile = random_profile(seed, 5 + seed % 2)
    problem = StageProblem(profile=profile, ranks=2, chunks=2, micro_batches=4, memory_bytes=GB, schedule="interleaved")
    first = plan_stages(problem).bounds
    problem = capped(problem, 0.2 + 0.03 * seed)
    plan = plan_stages(problem)
    second = best_step(each for each in every_plan(problem) if each.bounds == first)
    assert plan.fits
    assert second is None or plan.step_ns <= second
    for peer in plan_peers(problem).values():
        assert not peer.fits or plan.step_ns <= peer.step_ns


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_holds_where_the_search_is_cut_short(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem(seed, ranks=2, micro_batches=3)
    best = best_step(every_plan(problem))
    monkeypatch.setattr(stage_search, "MAX_NODES", 1)
    monkeypatch.setattr("trimtab.planning.recompute.MAX_CHOICES", 2)
    monkeypatch.setattr("trimtab.planning.recompute.MAX_LEVELS", 1)
    if best is None:
        with pytest.raises(InfeasibleError):
            plan_stages(problem)
        return
    plan = plan_stages(problem)
    assert plan.fits
    assert plan.lower_bound_ns <= best <= plan.step_ns


def test_plans_are_the_same_every_time() -> None:
    problem = small_problem(3)
    assert plan_stages(problem).digest() == plan_stages(replace(problem)).digest()
    other = replace(problem, micro_batches=problem.micro_batches + 1)
    assert plan_stages(other).digest() != plan_stages(problem).digest()


def test_costlier_transfers_move_cuts() -> None:
    profile = random_profile(5, 8)
    problem = StageProblem(profile=profile, ranks=3, micro_batches=4, memory_bytes=GB)
    dear = np.full(8, 10_000, dtype=np.int64)
    cheap = plan_stages(problem).bounds
    free = [row for row in range(8) if row + 1 not in cheap][:2]
    dear[free] = 0
    moved = plan_stages(replace(problem, profile=replace(profile, boundary_ns=dear)))
    assert [bound - 1 for bound in moved.bounds[1:-1]] == free
    assert sum(moved.send_ns) == 0


def test_earlier_stages_hold_more_micro_batches() -> None:
    plan = plan_stages(StageProblem(profile=random_profile(1, 9), ranks=4, micro_batches=8, memory_bytes=GB))
    assert plan.in_flight == (4, 3, 2, 1)
    assert plan.fits


@pytest.mark.parametrize("name", list(PEERS))
def test_peers_recompute_everything_or_what_their_method_chooses(name: str) -> None:
    problem = StageProblem(profile=random_profile(2, 10), ranks=3, micro_batches=6, memory_bytes=GB)
    loose = PEERS[name](problem)
    assert loose.method == name
    assert sum(map(len, loose.recompute)) == 0
    tight = PEERS[name](replace(problem, memory_bytes=1))
    assert not tight.fits
    assert sum(map(len, tight.recompute)) == int(
        (problem.profile.activation_bytes > problem.profile.recomputed_bytes).sum()
    )


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"ranks": 0}, SettingsError, "ranks=0 must be at least 1"),
        ({"micro_batches": -1}, SettingsError, "micro_batches=-1 must be at least 1"),
        ({"micro_batches": 10**9}, SettingsError, "micro_batches=1000000000 must be at most 4096"),
        ({"memory_bytes": 0}, SettingsError, "memory_bytes=0 must be at least 1"),
        ({"ranks": 9}, InfeasibleError, "9 stages need at least 9 layers, the model has 8; use at most 8"),
        ({"chunks": 2}, SettingsError, "chunks=2 needs schedule 'interleaved'"),
        ({"schedule": "interleaved"}, SettingsError, "at least 2 chunks"),
        ({"schedule": "interleaved", "chunks": 2, "micro_batches": 7}, SettingsError, "use 6"),
        ({"schedule": "interleaved", "chunks": 5}, InfeasibleError, "need at least 10 layers.*at most [234] chunks"),
    ],
)
def test_what_no_plan_can_meet_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    problem = StageProblem(profile=random_profile(0, 8), ranks=2, micro_batches=4, memory_bytes=GB)
    with pytest.raises(error, match=message):
        replace(problem, **changed)


def test_where_nothing_fits_the_smallest_cap_and_stages_are_named() -> None:
    unit = GB // 100
    profile = random_profile(4, 8)
    flat = {name: np.full(8, unit, dtype=np.int64) for name in ("activation_bytes", "recomputed_bytes", "state_bytes")}
    profile = replace(profile, **flat, workspace_bytes=np.zeros(8, np.int64), boundary_bytes=np.zeros(8, np.int64))
    problem = StageProblem(profile=profile, ranks=2, micro_batches=2, memory_bytes=5 * unit)
    with pytest.raises(
        InfeasibleError, match=r"no partition into 2 stages fits 0.05 GB.*smallest cap that fits is"
    ) as no:
        plan_stages(problem)
    needed = float(str(no.value).split("cap that fits is ")[1].split(" GB")[0])
    assert plan_stages(replace(problem, memory_bytes=round(needed * GB))).fits
    with pytest.raises(InfeasibleError):
        plan_stages(replace(problem, memory_bytes=round((needed - 0.01) * GB)))
    assert "or use" in str(no.value)
    assert plan_stages(replace(problem, ranks=int(str(no.value).split("or use ")[1].split(" ")[0]))).fits
    with pytest.raises(InfeasibleError, match=r"layer layer\.0 fits no rank: alone, and recomputed, it takes 0.02 GB"):
        plan_stages(replace(problem, memory_bytes=unit))


def test_least_memory_is_what_plans_take() -> None:
    problem = StageProblem(profile=random_profile(6, 6), ranks=2, micro_batches=5, memory_bytes=GB)
    for bounds in every_partition(problem):
        plan = plan_recomputing(problem, bounds, np.ones(6, dtype=np.bool_), "")
        least = least_memory(problem, 2)
        assert [memory.peak for memory in plan.memory] == [least[0, 0, bounds[1]], least[1, bounds[1], 6]]
