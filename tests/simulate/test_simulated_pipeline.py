"""Pipelines: one forward, one backward with micro-batches that differ; strategies of OmniBal."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_cases import text_workload

from trimtab.cost.models import model_preset
from trimtab.errors import SettingsError
from trimtab.planning.pipeline_schedule import step_ns
from trimtab.simulate.doubt import doubts
from trimtab.simulate.pipeline_schedule import run_1f1b
from trimtab.simulate.run import job_of, simulate
from trimtab.simulate.scenario import PipelineSettings, Scenario
from trimtab.simulate.sweep import fastest, recommend
from trimtab.simulate.timeline import Timeline

SMALL = {
    "data": "internvl",
    "model": "internvl-6b-20b",
    "cluster": "a100",
    "ranks": 32,
    "batch_size": 64,
    "steps": 1,
    "sync": "step",
    "pipeline": PipelineSettings(stages=4),
}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 50), st.data())
def test_equal_micro_batches_take_what_was_planned(stages: int, count: int, send: int, data: st.DataObject) -> None:
    forward, backward = (
        np.array([data.draw(st.lists(st.integers(1, 99), min_size=stages, max_size=stages))]) for _ in range(2)
    )
    sends = np.full((1, stages - 1), send)
    planned = step_ns("1f1b", stages, count, forward, backward, sends)[0]
    spread = [np.repeat(each.T[None], count, axis=0).astype(np.float64) for each in (forward, backward)]
    assert run_1f1b(spread[0], spread[1], sends[0].astype(np.float64), 0.0)[0] == planned


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000))
def test_a_step_takes_at_least_the_busiest_stage_and_starts_when_told(stages: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    forward, backward = (rng.random((count, stages, 3)) for _ in range(2))
    done = run_1f1b(forward, backward, np.zeros(stages - 1), 7.0)
    busiest = (forward + backward).sum(axis=0).max(axis=0)
    assert (done >= 7.0 + busiest - 1e-9).all()
    assert (done <= 7.0 + (forward + backward).sum(axis=(0, 1)) + 1e-9).all()


def test_packs_stages_and_recomputation_each_raise_the_throughput() -> None:
    found = simulate(job_of(Scenario(**SMALL), model_preset("internvl-6b-20b")), draw=True)
    rows = [row.tokens_per_gpu_s for row in found.strategies]
    assert [row.name for row in found.strategies] == ["random", "isf", "isf+stages", "isf+stages+recompute"]
    assert rows == sorted(rows)
    assert found.strategies[-1].out_of_memory == []
    assert {span.group for _, timeline in found.timelines for span in timeline.spans} >= {"stages"}
    again = simulate(job_of(Scenario(**SMALL), model_preset("internvl-6b-20b")))
    assert again.to_json() == found.to_json()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"strategies": ("all",)}, "strategy 'all' needs no pipeline"),
        ({"strategies": ("isf",), "pipeline": PipelineSettings()}, "needs pipeline.stages"),
        ({"ranks": 30}, "must be a multiple of pipeline.stages=4"),
        ({"batch_size": 63}, "batch_size=63 of the replicas"),
        ({"task": "grpo"}, "needs task=sft"),
        ({"pack_length": 4096}, "no pack_length"),
    ],
)
def test_contradictions_are_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Scenario(**{**SMALL, **changed})


def test_too_little_data_for_a_step_is_told() -> None:
    large = Scenario(**{**SMALL, "strategies": ("random",), "steps": 1, "batch_size": 4096})
    job = replace(job_of(large, model_preset("internvl-6b-20b")), workload=text_workload([100] * 4096))
    with pytest.raises(SettingsError, match="batch_size=4096 is more than the 1024 batches of 4 of the data; lower it"):
        simulate(job)


def test_data_that_end_are_packed_afresh_so_that_all_strategies_have_the_steps_asked_for() -> None:
    """Plain batches of 4 make the most steps of 400 samples, packs of up to 40 the fewest."""
    scenario = Scenario(**{**SMALL, "steps": 5, "batch_size": 8})
    job = replace(job_of(scenario, model_preset("internvl-6b-20b")), workload=text_workload([100, 300] * 200))
    found = simulate(job)
    assert [row.name for row in found.strategies] == ["random", "isf", "isf+stages", "isf+stages+recompute"]
    assert [len(row.token_seconds) for row in found.strategies] == [5] * 4
    assert found.steps == 5
    assert len(set(found.strategies[1].token_seconds)) > 1
    best = fastest(found)
    assert isinstance(doubts(found, recommend(best, {}, lambda _: best)), list)


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        (
            {"pack_tokens": 3000},
            r"^pipeline.pack_tokens=3000 is less than the 4096 tokens of sample 'internvl/\d+' ",
        ),
        ({"pack_tiles": 1}, r"^pipeline.pack_tiles=1 is less than the \d+ tiles of .* samples fit no pack\); set "),
        ({"pack_tokens": 1, "pack_tiles": 1}, r"set pipeline.pack_tokens=4096 pipeline.pack_tiles=\d+ or more$"),
    ],
)
def test_caps_below_the_largest_sample_are_refused_before_any_strategy_runs(caps: dict[str, int], told: str) -> None:
    scenario = Scenario(**{**SMALL, "pipeline": PipelineSettings(stages=4, **caps)})
    begun: list[str] = []
    with pytest.raises(SettingsError, match=told):
        simulate(job_of(scenario, model_preset("internvl-6b-20b")), progress=begun.append)
    assert begun == []


def test_plain_batches_alone_need_no_caps_of_packs() -> None:
    scenario = Scenario(**{**SMALL, "strategies": ("random",), "pipeline": PipelineSettings(stages=4, pack_tokens=1)})
    found = simulate(job_of(scenario, model_preset("internvl-6b-20b")))
    assert [row.name for row in found.strategies] == ["random"]


def test_a_timeline_of_a_pipeline_has_every_forward_and_backward() -> None:
    timeline = Timeline()
    run_1f1b(np.ones((3, 2, 1)), np.ones((3, 2, 1)), np.zeros(1), 0.0, timeline)
    assert len(timeline.spans) == 12
