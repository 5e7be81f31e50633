"""Where nothing fits, what overflows is told, and a change is named that fits when simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from simulate_cases import job_with, result_of, text_workload

from trimtab.cost.models import model_preset
from trimtab.simulate.job import Job
from trimtab.simulate.remedies import remedy
from trimtab.simulate.run import StrategyResult
from trimtab.simulate.scenario import RolloutSettings

LARGE = model_preset("qwen2.5-vl-72b")
Run = Callable[[Mapping[str, str]], StrategyResult]


def large_job(**changed: Any) -> Job:
    return replace(job_with(**changed), architecture=LARGE, workload=text_workload([1000] * 64))


def long_job(tokens: int = 200_000, **changed: Any) -> Job:
    return replace(job_with(batch_size=8, **changed), workload=text_workload([tokens, *[1000] * 63]))


def simulated(job: Job, tried: list[str]) -> Run:
    """Simulates changes, and keeps their names."""

    def run(changed: Mapping[str, str]) -> StrategyResult:
        tried.append(" ".join(f"{name}={value}" for name, value in changed.items()))
        numbers: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in changed.items()}
        engine = numbers.pop("rollout.tensor_parallel", job.scenario.rollout.tensor_parallel)
        numbers = {name: value == "true" if name == "recompute" else value for name, value in numbers.items()}
        rollout = replace(job.scenario.rollout, tensor_parallel=engine)
        return result_of(replace(job, scenario=replace(job.scenario, rollout=rollout, **numbers)), "all")

    return run


def remedy_of(job: Job, name: str = "all") -> tuple[str, list[str]]:
    tried: list[str] = []
    return remedy(job, result_of(job, name), simulated(job, tried)), tried


@pytest.mark.parametrize(
    ("job", "said", "tried"),
    [
        (large_job(), "the model's state alone takes 150 GB of a device's 72 GB; with ranks=24 it fits", 1),
        (large_job(sync="step"), "GB of a device's 72 GB; with ranks=24 sync=layer it fits", 1),
        (large_job(sync="step", ranks=32, batch_size=32), "a device's 72 GB; with sync=layer it fits", 1),
        (large_job(shards=8, ranks=32, batch_size=32), "a device's 72 GB; with shards=32 it fits", 1),
        (long_job(sync="step"), "of the model's state; with sync=layer it fits", 1),
        (long_job(max_degree=1), "activations overflow, beside 17 GB of the model's state; with max_degree=2 it", 1),
        (long_job(40_000, recompute=False, max_degree=1), "of the model's state; with recompute=true it fits", 1),
    ],
)
def test_what_overflows_is_told_with_what_fits(job: Job, said: str, tried: int) -> None:
    told, names = remedy_of(job)
    assert said in told
    assert len(names) == tried


def test_an_engine_too_small_is_given_more_devices() -> None:
    rollout = RolloutSettings(tensor_parallel=1, reference=False)
    told, _ = remedy_of(large_job(task="grpo", ranks=32, batch_size=8, rollout=rollout))
    assert told.startswith("an engine's weights and largest prompt overflow its devices; with rollout.tensor_parallel=")
    assert told.endswith(" it fits (simulated)")


def test_where_nothing_tried_fits_it_is_said_and_what_may_help() -> None:
    told, names = remedy_of(long_job(4_000_000))
    assert names == []
    assert told.endswith("of the model's state; smaller media (media.*) may help")
    job = long_job(max_degree=2, sync="step")
    never = result_of(job, "all")
    assert remedy(job, never, lambda _: never).endswith(
        "; with sync=layer or tensor_parallel=4 (which the trainer has not) or tensor_parallel=8 (which the trainer "
        "has not) it does not fit either (simulated); smaller media (media.*) may help"
    )


def test_ranks_are_not_named_where_no_number_of_them_helps() -> None:
    job = large_job()
    job = replace(job, cluster=replace(job.cluster, nodes=1))
    told, names = remedy_of(job)
    assert names == []
    assert told.endswith(
        "no number of these devices has room for it; take larger ones, or cut the model (pipeline.stages)"
    )
