"""Coefficients from recent steps: planted ones come back, and only better ones replace those in force."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.cost.measured import MeasuredCost
from trimtab.cost.observations import PhaseRecord, observations
from trimtab.cost.polynomial import PolynomialCost
from trimtab.cost.rank_work import RankWork
from trimtab.cost.refit import refit
from trimtab.cost.schedule import CostSchedule
from trimtab.errors import CheckpointError, SettingsError

PLANTED = PolynomialCost(a=2.0, b=30_000.0, c=5e6)


def records(
    steps: int, *, noise: float = 0.0, waiting: bool = False, disturbed: int = 0, seed: int = 0
) -> list[PhaseRecord]:
    """Two ranks, lengths varied; every rank takes what was planted and 40 ms, ``disturbed`` steps ten times that."""
    rng = np.random.default_rng(seed)
    result = []
    for step in range(steps):
        count = int(rng.integers(2, 24))
        tokens = np.exp(rng.normal(rng.uniform(5, 10), 0.7, count)).astype(np.int64)
        work = RankWork.of(tokens, np.arange(count) % 2, 2)
        each = (PLANTED.a * work.squared_tokens + PLANTED.b * work.tokens + PLANTED.c * work.samples) / 1e6 + 40
        each = each * (1 + noise * rng.normal(size=2)) * (10 if step < disturbed else 1)
        each = np.full(2, each.max()) if waiting else each
        result.append(PhaseRecord(work=work, compute_ms=each.tolist(), includes_waiting=waiting))
    return result


def coefficients(cost: PolynomialCost | None) -> list[float]:
    assert cost is not None
    return [cost.a / PLANTED.a, cost.b / PLANTED.b, cost.c / PLANTED.c]


@pytest.mark.parametrize("waiting", [False, True], ids=["time of each rank", "time of the slowest"])
def test_planted_coefficients_come_back_though_some_steps_were_disturbed(waiting: bool) -> None:
    found = refit(records(80, waiting=waiting, disturbed=3), None)
    assert coefficients(found.cost) == pytest.approx([1, 1, 1], rel=0.03)  # the smoothed maximum leaves 2 %


def test_better_coefficients_replace_those_in_force_and_worse_do_not() -> None:
    wrong = PolynomialCost(a=0.0, b=90_000.0, c=0.0)
    better = refit(records(120, noise=0.1), wrong)
    assert better.cost is not None
    assert better.error is not None
    assert better.error_in_force is not None
    assert better.error < 0.12 < better.error_in_force
    kept = refit(records(80), PLANTED)
    assert (kept.cost, kept.kept) == (None, "no better")


def test_steps_that_tell_nothing_are_refused() -> None:
    alike = RankWork.of(np.full(6, 500), np.arange(6) % 2, 2)
    found = refit([PhaseRecord(work=alike, compute_ms=[60.0, 61.0], includes_waiting=False)] * 60, PLANTED)
    assert (found.cost, found.kept) == (None, "refused")
    assert "cannot identify" in found.reason
    assert refit(records(3), PLANTED).kept == "refused"
    idle = [PhaseRecord(work=one.work, compute_ms=[5.0, 5.0], includes_waiting=False) for one in records(60)]
    assert "do not grow with the work" in refit(idle, PLANTED).reason


def test_ranks_without_work_or_time_are_no_observation() -> None:
    idle = RankWork.of(np.array([8]), np.array([0]), 2)
    found = observations([PhaseRecord(work=idle, compute_ms=[3.0, 0.0], includes_waiting=False)])
    assert [one.slowest_ms for one in found] == [3.0]


def test_a_schedule_changes_at_its_steps_and_survives_a_checkpoint() -> None:
    def counted(batch: object) -> None:
        return None

    first, second = (MeasuredCost(language=PolynomialCost(a=a, b=1, c=0), frame=PLANTED) for a in (1, 2))
    schedule = CostSchedule(counted)  # type: ignore[arg-type]
    schedule.change(5, first)
    schedule.change(9, second)
    assert [schedule.at(step) for step in (0, 4, 5, 8, 9, 100)] == [counted, counted, first, first, second, second]
    with pytest.raises(SettingsError, match="already change at step 9"):
        schedule.change(9, first)
    kept = CostSchedule.from_json(schedule.to_json(4), otherwise=counted)  # type: ignore[arg-type]
    assert [kept.at(step) for step in (4, 5, 9)] == [counted, first, second]
    later = CostSchedule.from_json(schedule.to_json(6), otherwise=counted)  # type: ignore[arg-type]
    assert [later.at(step) for step in (6, 8, 9)] == [first, first, second]
    with pytest.raises(CheckpointError, match="cost schedule"):
        CostSchedule.from_json({"language": {}}, otherwise=counted)  # type: ignore[arg-type]
