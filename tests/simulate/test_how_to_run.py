"""The command that stands for a strategy: settings the trainer takes, and what the strategy does."""

from __future__ import annotations

from typing import Any

import pytest
from simulate_cases import MODEL, job_with

from trimtab.cli.settings_parser import parse_settings
from trimtab.simulate.how_to_run import how_to_run
from trimtab.simulate.run import job_of
from trimtab.simulate.scenario import LoadingSettings, Scenario
from trimtab.simulate.strategies import KNOWN
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings

NEEDED = ["model=m", "data=[a.jsonl]", "table=a.parquet"]


def settings_of(command: str, task: str) -> Any:
    words = command.removeprefix(f"trimtab train {task} ... ").split()
    if task == "grpo":
        return parse_settings(GRPOSettings, [*NEEDED, "reward.function=a.py:b", *words], command="trimtab train grpo")
    return parse_settings(SFTSettings, [*NEEDED, *words], command="trimtab train sft")


@pytest.mark.parametrize(
    ("task", "name", "does"),  # balance.mode, balance.max_degree, loader.mode
    [
        ("grpo", "as-is", ("off", 1, "central")),
        ("grpo", "verl-bucketing", ("on", 1, "central")),
        ("grpo", "uniform-2", ("on", 2, "central")),
        ("grpo", "loongforge", ("on", 1, "central")),
        ("grpo", "loader-only", ("on", 1, "shadow")),
        ("grpo", "adaptive-only", ("on", 8, "central")),
        ("grpo", "whole-sample", ("on", 1, "shadow")),
        ("grpo", "all", ("on", 8, "shadow")),
        ("sft", "as-is", ("off", 1, "shadow")),
        ("sft", "verl-bucketing", ("on", 1, "central")),
        ("sft", "loader-only", ("off", 1, "shadow")),
        ("sft", "adaptive-only", ("on", 8, "shadow")),
        ("sft", "all", ("on", 8, "shadow")),
    ],
)
def test_the_command_does_what_the_strategy_does(task: str, name: str, does: tuple[str, int, str]) -> None:
    run = how_to_run(job_with(task=task), name)
    found = settings_of(run.command, task)
    assert (found.balance.mode, found.balance.max_degree, found.loader.mode) == does
    assert (run.remark == "run") == (name in ("all", "whole-sample"))


@pytest.mark.parametrize(
    "changed",
    [
        {"sync": "step"},
        {"pack_length": 65_536, "data": "geo3k"},
        {"loading": LoadingSettings(prefetch=0)},
        {"tensor_parallel": 2},
        {"task": "grpo", "micro_batch_tokens": 30_000},
    ],
)
@pytest.mark.parametrize("name", KNOWN)
def test_the_trainer_takes_every_command(name: str, changed: dict[str, Any]) -> None:
    job = job_with(**changed)
    settings_of(how_to_run(job, name).command, job.scenario.task)


@pytest.mark.parametrize(("ranks", "asked", "printed"), [(8, 7, 4), (4, 8, 4), (6, 6, 4), (32, 32, 32), (8, 3, 2)])
def test_the_degree_printed_divides_the_heads_and_has_its_ranks(ranks: int, asked: int, printed: int) -> None:
    job = job_with(ranks=ranks, max_degree=asked)
    run = how_to_run(job, "all")
    degree = settings_of(run.command, "sft").balance.max_degree
    assert degree == printed
    assert degree in MODEL.language.legal_degrees(ranks)


def test_a_cap_holds_the_longest_sample_at_the_degree_printed() -> None:
    job = job_with(data="video-heavy", micro_batch_tokens=1)
    longest = int(job.workload.samples.tokens.max())
    for name, degree in (("uniform-2", 2), ("whole-sample", 1), ("all", 8)):
        found = settings_of(how_to_run(job, name).command, "sft")
        assert found.max_tokens_per_micro_batch == -(-longest // degree)


def test_what_the_trainer_cannot_do_is_said() -> None:
    scenario = Scenario(ranks=8, batch_size=16, tensor_parallel=2, balance_vision=False)
    assert how_to_run(job_of(scenario, MODEL), "all").remark == (
        "the trainer has no tensor_parallel=2 and no balance_vision=false; its nearest to what was simulated"
    )
