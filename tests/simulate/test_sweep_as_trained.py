"""The settings are swept again on what the trainer runs, and its command says what that takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from simulate_cases import job_with, result_of, text_workload

from trimtab.simulate.as_trained import Nearest
from trimtab.simulate.how_to_run import HowToRun, how_to_run
from trimtab.simulate.job import Job
from trimtab.simulate.sweep import Recommendation
from trimtab.simulate.sweep_as_trained import nearest_as_trained

Overrides = Mapping[str, str]
RECOMPUTE = {"recompute": ["true", "false"]}


def made(tokens: list[int], **given: Any) -> Callable[[Overrides], Job]:
    """Makes jobs of text of these lengths."""

    def job_of(changed: Overrides) -> Job:
        recompute = changed.get("recompute", "true") == "true"
        settings = {"tensor_parallel": 4, "batch_size": 8, "recompute": recompute, **given}
        return replace(job_with(**settings), workload=workload)

    workload = text_workload(tokens)
    return job_of


def told(job_of: Callable[[Overrides], Job], name: str, settings: dict[str, str]) -> tuple[Nearest | None, HowToRun]:
    job = job_of(settings)
    result = result_of(job, name)
    best = Recommendation(strategy=name, settings=settings, result=result, fits=not result.out_of_memory)
    nearest = nearest_as_trained(best, RECOMPUTE, job_of, lambda _: None)
    return nearest, how_to_run(job, name, nearest)


LONG = [200_000, *[1000] * 63]
"""One fits no device, and fits four."""


@pytest.mark.parametrize("name", ["loongforge", "verl-bucketing", "whole-sample"])
def test_a_nearest_that_does_not_fit_is_said_with_the_degree_that_does(name: str) -> None:
    nearest, run = told(made(LONG), name, {})
    assert nearest is not None
    assert nearest.step_ms is None
    assert nearest.remark.startswith("which, simulated, does not fit in memory: device ")
    assert nearest.remark.endswith(" GB of 72 GB; with balance.max_degree=8 it does")
    assert "balance.max_degree=1 " in run.command
    assert f"({nearest.remark})" in run.remark


def test_where_no_degree_helps_none_is_named() -> None:
    nearest, _ = told(made(LONG, max_degree=1), "loongforge", {})
    assert nearest is not None
    assert nearest.remark.endswith(" GB of 72 GB")


def test_the_command_carries_what_is_best_of_what_it_runs() -> None:
    """A device of its own has no room for what four hold without recomputation."""
    job_of = made([*[24_000] * 40])
    nearest, run = told(job_of, "whole-sample", {"recompute": "false"})
    assert nearest is not None
    trained = result_of(made([*[24_000] * 40], tensor_parallel=1)({}), "whole-sample")
    assert nearest.step_ms == run.step_ms == trained.step_ms
    assert "recompute=true " in run.command
    assert "s a step with the settings as given, beside those" in run.remark


def test_what_runs_as_simulated_is_not_simulated_again() -> None:
    nearest, run = told(made(LONG, tensor_parallel=1), "all", {})
    assert (nearest, run.step_ms, run.remark) == (None, None, "run")


def test_a_state_that_fits_no_device_is_not_simulated_again() -> None:
    nearest, run = told(made([1000] * 64, ranks=8, sync="step", reserve=0.3), "all", {})
    assert nearest is None
    assert re.search(r"without it the model's state alone takes 6\d GB of a device and does not fit", run.remark)


@pytest.mark.parametrize("name", ["uniform-2", "loongforge"])
def test_a_degree_swept_is_that_of_the_command_whatever_the_strategy(name: str) -> None:
    """One long sample is the step: the more ranks share it the shorter it is."""

    def job_of(changed: Overrides) -> Job:
        degree = int(changed.get("max_degree", 8))
        return replace(job_with(batch_size=8, max_degree=degree), workload=workload)

    workload = text_workload([40_000, *[1000] * 7])
    result = result_of(job_of({}), name)
    best = Recommendation(strategy=name, settings={}, result=result, fits=True)
    nearest = nearest_as_trained(best, {"max_degree": ["1", "2", "4"]}, job_of, lambda _: None)
    assert nearest is not None
    assert nearest.step_ms == result_of(job_of({"max_degree": "4"}), "all").step_ms
    run = how_to_run(job_of({}), name, nearest)
    assert "balance.max_degree=4 " in run.command
    assert "s a step with max_degree=4, beside those" in run.remark


def test_a_command_that_is_slower_is_said_to_be() -> None:
    """One device takes the long sample alone, which four took together."""
    nearest, _ = told(made([24_000, *[1000] * 7]), "whole-sample", {})
    assert nearest is not None
    assert re.search(r"; the command is the slower, \d+% more time a token$", nearest.remark)
