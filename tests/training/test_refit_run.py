"""Costs refitted while a run goes on: equal on all ranks, in force at one step, exact on resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist
from tests.report.test_comparison import report_of
from tests.training.small_run import steps_of, train_within, write_run

from trimtab.cost.measured import MeasuredCost
from trimtab.cost.polynomial import PolynomialCost
from trimtab.cost.rank_work import RankWork
from trimtab.cost.schedule import CostSchedule
from trimtab.errors import SettingsError
from trimtab.loader.settings import LoaderSettings
from trimtab.schema.reports import StepReport
from trimtab.testing import RankPool
from trimtab.training import step_report
from trimtab.training.refit import CostRefit
from trimtab.training.settings import BalanceSettings, SFTSettings

LANGUAGE = PolynomialCost(a=2.0, b=30_000.0, c=5e6)
FRAME = PolynomialCost(a=0.5, b=20_000.0, c=1e6)
WRONG = MeasuredCost(language=PolynomialCost(a=0, b=9e4, c=0), frame=PolynomialCost(a=0, b=9e4, c=0))


@dataclass(frozen=True)
class Watched:
    """What one rank saw: the costs of each step, and what it told."""

    costs: list[dict[str, Any] | None]
    told: list[str]


def planted_ms(work: RankWork, cost: PolynomialCost) -> np.ndarray:
    return (cost.a * work.squared_tokens + cost.b * work.tokens + cost.c * work.samples) / 1e6 + 40


def drawn_report(step: int, rng: np.random.Generator, *, fixed: bool) -> StepReport:
    """A step of two ranks whose times are planted, under 10 % noise."""
    works = []
    for longest in (11, 8):
        count = int(rng.integers(4, 24))
        sizes = np.exp(rng.normal(rng.uniform(5, longest), 0.7, count)).astype(np.int64)
        sizes = np.full(4, 500) if fixed else sizes
        works.append(RankWork.of(sizes, np.arange(len(sizes)) % 2, 2))
    language, vision = works
    times = {"language": planted_ms(language, LANGUAGE), "vision": planted_ms(vision, FRAME)}
    return replace(
        report_of(step, step_ms=1.0),
        samples=int(language.samples.sum()),
        rank_work=language.to_json(),
        vision_work=vision.to_json(),
        compute_ms={name: (each * (1 + 0.1 * rng.normal(size=2))).tolist() for name, each in times.items()},
    )


def watch(group: dist.ProcessGroup, steps: int, every: int, fixed: bool) -> Watched:
    """Drive refits through made-up steps; ranks draw times of their own, as only rank 0's count."""
    schedule, told, costs = CostSchedule(WRONG), [], []
    refit = CostRefit(
        schedule, every=every, last_step=10_000, horizon=lambda step: step + 6, group=group, say=told.append
    )
    rng = np.random.default_rng([group.rank(), 7])
    for step in range(steps):
        refit.after(drawn_report(step, rng, fixed=fixed))
    for step in range(steps + 6):
        model = schedule.at(step)
        costs.append(model.to_json() if isinstance(model, MeasuredCost) else None)
    return Watched(costs=costs, told=told)


def test_planted_costs_come_back_on_all_ranks_at_one_step(rank_pool: RankPool) -> None:
    one, other = rank_pool.run(2, watch, 250, 250, False)
    assert one.costs == other.costs
    assert one.costs[254] == WRONG.to_json()
    found = MeasuredCost.from_json(one.costs[255] or {})
    assert found.language.a == pytest.approx(LANGUAGE.a, rel=0.05)
    assert found.language.b == pytest.approx(LANGUAGE.b, rel=0.05)
    assert found.frame.b == pytest.approx(FRAME.b, rel=0.05)
    assert len(one.told) == 1
    assert "plan from step 255 on" in one.told[0]
    assert other.told == []


def test_refused_fits_change_nothing_and_are_told_once(rank_pool: RankPool) -> None:
    one, other = rank_pool.run(2, watch, 90, 30, True)
    assert one.costs == other.costs == [WRONG.to_json()] * 96
    assert len(one.told) == 2
    assert all("stay as they are" in line and "cannot identify" in line for line in one.told)
    assert other.told == []


@contextmanager
def planted_times(rank: int) -> Iterator[None]:
    """Every rank's language phase takes 50 us a token and 3 ms, whatever the machine does."""
    gather = step_report.gather_report

    def gathered(*args: Any, **more: Any) -> step_report.StepOutcome:
        outcome = gather(*args, **more)
        work = RankWork.from_json(outcome.report.rank_work)
        times = {**outcome.report.compute_ms, "language": (0.05 * work.tokens + 3).tolist(), "vision": [1.0, 1.0]}
        return replace(outcome, report=replace(outcome.report, compute_ms=times))

    with (
        mock.patch("trimtab.training.sft.gather_report", gathered),
        mock.patch("trimtab.training.sft.measure_costs", return_value=WRONG),
    ):
        yield


def run_settings(files: dict[str, Any], name: str, **changes: Any) -> SFTSettings:
    balance, loader = BalanceSettings(refit_every=6), LoaderSettings(prefetch=1)
    plain: dict[str, Any] = {"steps": 10, "samples_per_step": 6, "name": name, "timeout_s": 60, "loader": loader}
    return SFTSettings(**{**files, **plain, "balance": balance, **changes})


def predicted(settings: SFTSettings) -> list[list[float]]:
    return [step["predicted_rank_ms"] for step in steps_of(settings)]


def kept_costs(settings: SFTSettings) -> dict[str, Any]:
    (path,) = settings.folder.glob("checkpoints/*/progress.json")
    return dict(json.loads(path.read_text())["costs"])


@pytest.mark.slow
def test_a_run_refits_and_goes_on_alike_after_a_stop(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, samples=8, photos=False)
    whole = run_settings(files, "whole")
    rank_pool.run(2, train_within, whole, planted_times)
    stopped = run_settings(files, "parts", stop_after=7)
    rank_pool.run(2, train_within, stopped, planted_times)
    (before, after) = kept_costs(stopped)["schedule"]
    assert before == {"from_step": 0, "costs": WRONG.to_json()}
    assert after["from_step"] == 9
    assert after["costs"]["language"]["b"] == pytest.approx(5e4, rel=1e-3)
    assert after["costs"]["frame"] == WRONG.to_json()["frame"]
    rank_pool.run(2, train_within, run_settings(files, "parts", resume=True), planted_times)
    assert predicted(run_settings(files, "parts")) == predicted(whole)
    assert kept_costs(run_settings(files, "parts")) == kept_costs(whole)
    for step, record in enumerate(steps_of(whole)):
        tokens, frames = record["rank_work"]["tokens"], record["vision_work"]["tokens"]
        each = 0.09 if step < 9 else 0.05
        expected = [each * t + 0.09 * f for t, f in zip(tokens, frames, strict=True)]
        assert record["predicted_rank_ms"] == pytest.approx(expected, rel=1e-3)


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"balance\.refit_every=-1"):
        BalanceSettings(refit_every=-1)
