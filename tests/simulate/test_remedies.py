"""Where nothing fits, what overflows is told, and a change is named that fits when simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from simulate_cases import job_with, result_of, text_workload

from trimtab.cost.models import model_preset
from trimtab.simulate.job import Job
from trimtab.simulate.remedies import Unfit, remedy
from trimtab.simulate.run import StrategyResult
from trimtab.simulate.scenario import PipelineSettings, RolloutSettings

LARGE = model_preset("qwen2.5-vl-72b")
Run = Callable[[Mapping[str, str]], StrategyResult]


def large_job(**changed: Any) -> Job:
    return replace(job_with(**changed), architecture=LARGE, workload=text_workload([1000] * 64))


def long_job(tokens: int = 200_000, **changed: Any) -> Job:
    return replace(job_with(batch_size=8, **changed), workload=text_workload([tokens, *[1000] * 63]))


def simulated(job: Job, name: str, tried: list[str]) -> Run:
    """Simulates changes, and keeps their names."""

    def run(changed: Mapping[str, str]) -> StrategyResult:
        tried.append(" ".join(f"{key}={value}" for key, value in changed.items()))
        numbers: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in changed.items()}
        engine = numbers.pop("rollout.tensor_parallel", job.scenario.rollout.tensor_parallel)
        of_pipeline = {key: numbers.pop(key) for key in changed if key.startswith("pipeline.")}
        pipeline = replace(
            job.scenario.pipeline, **{key.removeprefix("pipeline."): value for key, value in of_pipeline.items()}
        )
        numbers = {key: value == "true" if key == "recompute" else value for key, value in numbers.items()}
        rollout = replace(job.scenario.rollout, tensor_parallel=engine)
        scenario = replace(job.scenario, rollout=rollout, pipeline=pipeline, **numbers)
        return result_of(replace(job, scenario=scenario), name)

    return run


def remedy_of(job: Job, name: str = "all") -> tuple[str, list[str]]:
    tried: list[str] = []
    return remedy(Unfit(job=job, result=result_of(job, name), run=simulated(job, name, tried))), tried


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
    assert told.endswith("of the model's state; shorter texts may help")
    job = long_job(max_degree=2, sync="step")
    never = result_of(job, "all")
    assert remedy(Unfit(job=job, result=never, run=lambda _: never)).endswith(
        "; with sync=layer or tensor_parallel=4 (which the trainer has not) or tensor_parallel=8 (which the trainer "
        "has not) it does not fit either (simulated); shorter texts may help"
    )


def test_ranks_are_not_named_where_no_number_of_them_helps() -> None:
    job = large_job()
    job = replace(job, cluster=replace(job.cluster, nodes=1))
    told, names = remedy_of(job)
    assert names == []
    assert told.endswith(
        "no number of these devices has room for it; take larger ones, or cut the model (pipeline.stages)"
    )


def test_more_ranks_make_room_for_activations() -> None:
    job = replace(job_with(ranks=2, batch_size=8, max_degree=1), workload=text_workload([16_000, *[1000] * 63]))
    told, names = remedy_of(job, "whole-sample")
    assert names == ["ranks=4"]
    assert "activations overflow, beside" in told
    assert told.endswith("with ranks=4 it fits (simulated)")


def test_packs_are_halved_before_what_the_trainer_has_not() -> None:
    job = replace(job_with(batch_size=8, pack_length=393_216), workload=text_workload([20_000] * 256))
    told, names = remedy_of(job)
    assert names == ["pack_length=98304"]
    assert told.endswith("with pack_length=98304 it fits (simulated)")


def test_a_model_cut_too_coarsely_is_cut_finer_over_more_ranks() -> None:
    job = large_job(ranks=16, pipeline=PipelineSettings(stages=8), strategies=("isf",))
    told, names = remedy_of(job, "isf")
    assert names[-1] == "ranks=32 pipeline.stages=16"
    assert told.endswith("it fits (simulated)")


def test_media_are_not_blamed_for_the_state_of_a_stage() -> None:
    job = large_job(ranks=8, pipeline=PipelineSettings(stages=8), strategies=("isf",))
    never = result_of(job, "isf")
    told = remedy(Unfit(job=job, result=never, run=lambda _: never))
    assert told.endswith("more stages on more ranks (pipeline.stages, ranks) or larger devices may help")


def test_changes_are_tried_on_the_settings_as_given_too() -> None:
    tried: list[str] = []
    given = long_job(max_degree=1)
    varied = replace(given, scenario=replace(given.scenario, recompute=False))
    never = result_of(varied, "all")
    nearest = Unfit(job=varied, result=never, run=lambda _: never)
    base = Unfit(job=given, result=result_of(given, "all"), run=simulated(given, "all", tried))
    assert remedy(nearest, base).endswith("with max_degree=2 (the rest as given) it fits (simulated)")
    assert tried == ["max_degree=2"]
