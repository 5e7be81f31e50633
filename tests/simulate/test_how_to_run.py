"""The command that stands for a strategy: settings the trainer takes, and what the strategy does."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulate_cases import MODEL, job_with

from trimtab.cli.settings_parser import parse_settings
from trimtab.cost.models import model_preset
from trimtab.schema.metadata import SampleMetadata
from trimtab.schema.table import DatasetFile, MetadataTable
from trimtab.simulate.how_to_run import how_to_run
from trimtab.simulate.run import job_of
from trimtab.simulate.scenario import LoadingSettings, RolloutSettings, Scenario
from trimtab.simulate.strategies import KNOWN
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings


def scanned(name: str) -> MetadataTable:
    """What a scan of one file makes."""
    sample = SampleMetadata(sample_id="a", text_tokens=9, loss_tokens=3, loss_weight=1.0, visuals=())
    return MetadataTable.from_samples([sample], files=[DatasetFile(name=name, size=2, rows=1, digest="0" * 16)])


def settings_of(command: str, task: str) -> Any:
    trimtab, train, named, *words = shlex.split(command)
    assert [trimtab, train, named] == ["trimtab", "train", task]
    return parse_settings(GRPOSettings if task == "grpo" else SFTSettings, words, command=f"trimtab train {task}")


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
    assert run.remark.startswith("run") == (name in ("all", "whole-sample"))


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


def test_exchanges_that_the_trainer_does_otherwise_are_said_where_ranks_share_samples() -> None:
    job = job_with(pack_tokens=65_536)
    assert how_to_run(job, "all").remark == "run"
    assert "no pack_tokens=65536" in how_to_run(job, "all", shared_by=2).remark


def test_the_cap_is_what_fits_a_device_without_tensor_parallelism() -> None:
    changed = {"ranks": 64, "batch_size": 64, "data": "geo3k"}
    whole = job_with(**changed)
    for asked in (None, 10**7):
        split = job_with(**changed, tensor_parallel=8, shards=16, micro_batch_tokens=asked)
        assert split.room_tokens > 4 * whole.room_tokens
        found = settings_of(how_to_run(split, "all").command, "sft")
        assert found.max_tokens_per_micro_batch == whole.room_tokens


def test_shards_of_its_own_and_a_state_too_large_without_them_are_said() -> None:
    job = job_of(Scenario(ranks=16, batch_size=16, shards=8), MODEL)
    assert how_to_run(job, "all").remark == "the trainer has no shards=8; its nearest to what was simulated"
    assert how_to_run(job, "loongforge").remark == (
        "loongforge is another system's way and the trainer has no shards=8; trimtab's nearest"
    )
    large = job_with(tensor_parallel=8, sync="step", model="qwen2.5-vl-72b")
    large = replace(large, architecture=model_preset("qwen2.5-vl-72b"))
    assert re.search(
        r"the model's state alone takes \d+ GB of a device and does not fit\)$", how_to_run(large, "all").remark
    )


def test_a_rollout_that_the_command_does_not_run_is_said() -> None:
    of_server = "rollout.engine=server is for a model larger than one device"
    with_reference = "simulated with rollout.reference; the trainer has one with objective.kl_coefficient above 0 only"
    remark = how_to_run(job_with(task="grpo", rollout=RolloutSettings(tensor_parallel=2)), "all").remark
    assert remark.startswith("run (simulated with rollout.tensor_parallel=2; ")
    assert remark.endswith(f"{of_server}; {with_reference})")
    plain = RolloutSettings(tensor_parallel=1, reference=False)
    assert how_to_run(job_with(task="grpo", rollout=plain), "all").remark == "run"


def test_what_a_scenario_does_not_know_stands_in_capitals_and_is_said() -> None:
    run = how_to_run(job_with(task="grpo"), "all")
    assert run.command.startswith(
        "trimtab train grpo model=MODEL data=[DATA] table=TABLE reward.function=FILE.py:NAME samples_per_step=16 "
    )
    assert run.needs == (
        "put in MODEL, the checkpoint's folder; DATA, the dataset's files; FILE.py:NAME, the reward's function; "
        "image-heavy is no scanned table: `trimtab scan` the dataset first, its --out is TABLE"
    )


def test_a_checkpoint_and_a_scanned_table_stand_in_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "of mine"
    folder.mkdir()
    for name in ("config.json", "train.jsonl"):
        (folder / name).write_text("{}")
    table = str(folder / "train.parquet")
    job = job_with()
    job = replace(job, scenario=replace(job.scenario, model=str(folder), data=table), table=scanned("train.jsonl"))
    run = how_to_run(job, "all")
    found = settings_of(run.command, "sft")
    assert (found.model, found.data, found.table) == (folder, (str(folder / "train.jsonl"),), Path(table))
    assert run.needs == ""
    (folder / "train.jsonl").unlink()
    assert how_to_run(job, "all").needs == "put in DATA, the dataset's files"


def test_a_model_that_fits_no_device_is_asked_for_at_a_server() -> None:
    job = job_with(task="grpo", rollout=RolloutSettings(reference=False))
    run = how_to_run(replace(job, architecture=model_preset("qwen2.5-vl-72b")), "all")
    assert "bf16 weights fit no device of 80 GB, so rollout.engine=server" in run.remark
    found = settings_of(run.command, "grpo").rollout
    assert (found.engine, found.server.model, found.server.weights) == ("server", "SERVED_MODEL", "WEIGHTS")
    assert "SERVER, the inference server's host; SERVED_MODEL, its name for the model; WEIGHTS, a folder" in run.needs
    assert "rollout.engine" not in how_to_run(job, "all").command
