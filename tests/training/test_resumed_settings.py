"""What a resumed run is told of settings that differ from those it had."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.testing import RankPool
from trimtab.training import checkpoint
from trimtab.training.optimizer import make_optimizer
from trimtab.training.resumed_settings import checkpoint_to_resume
from trimtab.training.run_folder import RunFolder, plain_settings
from trimtab.training.settings import BalanceSettings, EvalSettings, LoraSettings, OptimizerSettings, SFTSettings


def run_of(folder: Path, *, steps: int = 4, done: int = 4, **changes: Any) -> SFTSettings:
    """Settings of a run that left a checkpoint after ``done`` steps."""
    settings = SFTSettings(
        model=Path("m"), data=("a.jsonl",), table=Path("t.parquet"), runs=folder, steps=steps, **changes
    )
    RunFolder(settings.folder, first_step=0).write_settings(settings)
    whole = settings.folder / "checkpoints" / f"step-{done:06d}"
    whole.mkdir(parents=True)
    (whole / "progress.json").write_text(json.dumps({"next_step": done, "loader": {}}))
    return replace(settings, resume=True)


def resumed(settings: SFTSettings, *, rank: int = 0) -> Path | None:
    group: Any = None
    ranks = Ranks(rank=rank, size=2, data=group, control=group, mesh=group, device=torch.device("cpu"))
    return checkpoint_to_resume(settings, ranks)


def test_the_same_settings_are_resumed_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, optimizer=OptimizerSettings(learning_rate=1e-5))
    elsewhere = replace(run, data=("moved/a.jsonl",), checkpoint_every=2, evaluation=EvalSettings(samples_per_step=3))
    packs_of_none = replace(elsewhere, packing=PackingSettings(tokens=9), lora=LoraSettings(alpha=2.0))
    assert resumed(packs_of_none) == run.folder / "checkpoints" / "step-000004"
    assert capsys.readouterr().err == ""


def test_what_may_differ_is_told_once_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path)
    other = replace(
        run,
        steps=6,
        max_tokens_per_micro_batch=100,
        optimizer=OptimizerSettings(learning_rate=1e-4, weight_decay=0.1),
        loader=LoaderSettings(on_bad_sample="skip", allowed_roots=("/data",)),
    )
    assert resumed(other)
    assert resumed(other, rank=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "--resume from step-000004 with settings that differ: steps: was 4, now 6; "
        "max_tokens_per_micro_batch: was null, now 100; optimizer.learning_rate: was 1e-05, now 0.0001; "
        "optimizer.weight_decay: was 0.0, now 0.1; loader.on_bad_sample: was raise, now skip; "
        'loader.allowed_roots: was [], now ["/data"]'
    )


def test_what_must_stay_is_refused_and_listed_whole(tmp_path: Path) -> None:
    run = run_of(tmp_path, freeze_vision=True)
    other = replace(run, samples_per_step=8, seed=1, freeze_vision=False, lora=LoraSettings(rank=2))
    with pytest.raises(CheckpointError) as refused:
        resumed(other, rank=1)
    for told in (
        "samples_per_step: was 16, now 8",
        "seed: was 0, now 1",
        "freeze_vision: was true, now false",
        "lora.rank: was 0, now 2",
        "put back what the run was made with, or give another name",
    ):
        assert told in str(refused.value)


def test_packs_must_stay_and_the_samples_of_a_step_need_not(tmp_path: Path) -> None:
    run = run_of(tmp_path, packing=PackingSettings(method="best", tokens=100))
    assert resumed(replace(run, samples_per_step=8))
    with pytest.raises(CheckpointError, match=r"packing\.tokens: was 100, now 200; put back"):
        resumed(replace(run, packing=PackingSettings(method="best", tokens=200)))


@pytest.mark.parametrize(("change", "name"), [({"steps": 3}, "steps"), ({"stop_after": 3}, "stop_after")])
def test_fewer_steps_than_done_are_refused(tmp_path: Path, change: dict[str, int], name: str) -> None:
    run = run_of(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{name}=3 ends before step 4, where .*; set {name} to 4 or more"):
        resumed(replace(run, **change))


def test_a_checkpoint_of_another_balance_mode_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path)
    assert resumed(replace(run, balance=BalanceSettings(mode="off"))) is None
    first, second = capsys.readouterr().err.splitlines()
    assert "beginning at step 0" in first
    assert second == f"{run.folder / 'checkpoints'} has one, of a run with another balance.mode"


def test_a_folder_without_readable_settings_is_left_to_the_checkpoint(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for content in ("[", "3\n", ""):
        (run.folder / "config.yaml").write_text(content)
        assert resumed(replace(run, seed=1))


@pytest.mark.slow
def test_weight_decay_and_betas_are_those_of_the_settings(rank_pool: RankPool, tmp_path: Path) -> None:
    ((decay, betas),) = rank_pool.run(1, _decay_after_resume, tmp_path)
    assert (decay, betas) == ([0.3, 0.0], (0.9, 0.99))


def _decay_after_resume(group: dist.ProcessGroup, folder: Path) -> tuple[list[float], tuple[float, float]]:
    before = OptimizerSettings(weight_decay=0.1)
    after = OptimizerSettings(weight_decay=0.3, beta2=0.99)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, before)
    progress = checkpoint.Progress(next_step=1, loader={})
    path = checkpoint.save(folder, model, optimizer, progress, group)
    optimizer = make_optimizer(model, after)
    checkpoint.load(path, model, optimizer, group, dataset="")
    return [those["weight_decay"] for those in optimizer.param_groups], optimizer.param_groups[0]["betas"]


def test_a_checkpoint_knows_the_settings_it_was_made_with(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    written = asdict(checkpoint.Progress(next_step=4, loader={}, settings=plain_settings(run)))
    (run.folder / "checkpoints" / "step-000004" / "progress.json").write_text(json.dumps(written))
    frozen = replace(run, seed=7)
    RunFolder(run.folder, first_step=4).write_settings(frozen)  # by a resume that ended before its next checkpoint
    assert resumed(run) is not None
    with pytest.raises(CheckpointError, match="seed: was 0, now 7"):
        resumed(frozen)


def test_a_checkpoint_without_its_progress_is_told_and_stays(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    newest = run.folder / "checkpoints" / "step-000004"
    (newest / "progress.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-000004: progress\.json is missing; there is no other"):
        resumed(run)
    for damaged in ('{"next_step": 4', '{"next_step": 4, "loader": null}', "[]"):
        (newest / "progress.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"progress\.json is damaged"):
            resumed(run)


def test_copies_beside_checkpoints_are_no_checkpoints(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    folder = run.folder / "checkpoints"
    for name in ("step-000009-keep", "step-000003 copy", "step-final"):
        (folder / name).mkdir()
        (folder / name / "progress.json").write_text("{}")
    assert resumed(run) == folder / "step-000004"
    assert resumed(replace(run, resume=False)) is None
    kept = {"previous", "step-000009-keep", "step-000003 copy", "step-final"}
    assert {path.name for path in folder.iterdir()} == kept


def test_a_fresh_start_leaves_nothing_a_resume_would_find(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    folder = run.folder / "checkpoints"
    (folder / "step-000002").mkdir()  # its removal was cut off
    assert resumed(replace(run, resume=False)) is None
    assert resumed(run) is None
    assert (folder / "previous" / "progress.json").is_file()
