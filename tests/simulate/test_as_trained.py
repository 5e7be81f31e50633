"""Whether what the trainer has instead of a simulated strategy fits in memory is said beside its command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulate_cases import job_with, result_of, text_workload

from trimtab.simulate.as_trained import unfit_as_trained
from trimtab.simulate.how_to_run import how_to_run
from trimtab.simulate.job import Job


def long_job(**changed: Any) -> Job:
    """A sample that fits no device, and fits four."""
    job = job_with(**{"tensor_parallel": 4, "batch_size": 8, **changed})
    return replace(job, workload=text_workload([200_000, *[1000] * 63]))


@pytest.mark.parametrize("name", ["loongforge", "verl-bucketing", "whole-sample"])
def test_a_nearest_that_does_not_fit_is_said_with_the_degree_that_does(name: str) -> None:
    job = long_job()
    assert not result_of(job, name).out_of_memory
    unfit = unfit_as_trained(job, name)
    assert unfit.startswith("which, simulated, does not fit in memory: device ")
    assert unfit.endswith(" GB of 72 GB; with balance.max_degree=8 it does")
    run = how_to_run(job, name, unfit)
    assert "balance.max_degree=1 " in run.command
    assert f"({unfit})" in run.remark


def test_where_no_degree_helps_none_is_named() -> None:
    unfit = unfit_as_trained(long_job(max_degree=1), "loongforge")
    assert unfit.endswith(" GB of 72 GB")


def test_what_fits_or_is_done_as_simulated_or_is_no_balance_needs_no_word() -> None:
    short = job_with(tensor_parallel=4)
    assert unfit_as_trained(short, "loongforge") == ""
    assert unfit_as_trained(long_job(tensor_parallel=1), "all") == ""
    assert unfit_as_trained(long_job(), "as-is") == ""
