"""Whole supervised runs on real ranks and real files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tests.training.sft_run import CENTRAL, OFF, SKIP, assert_same_bits, losses, settings_for, weights
from tests.training.small_run import scan, steps_of, train_on_rank, train_within, write_run
from transformers import AutoModelForImageTextToText, AutoTokenizer

from trimtab.errors import LoaderError, MetadataError, RankDisagreementError, SettingsError, TrainingError
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.settings import BalanceSettings, EvalSettings, LoraSettings, OptimizerSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("run"))


def test_balanced_and_baseline_train_alike(rank_pool: RankPool, files: dict[str, Any]) -> None:
    balanced = settings_for(files, "alike", dtype="float64")
    baseline = settings_for(files, "alike", dtype="float64", balance=OFF, loader=CENTRAL)
    for settings in (balanced, baseline):
        assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    assert losses(balanced) == pytest.approx(losses(baseline), rel=1e-10)
    assert losses(balanced)[-1] < losses(balanced)[0]
    after, before = weights(balanced), weights(baseline)
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-8, atol=1e-10)
    moved = [step["moved_bytes"] for step in steps_of(baseline)]
    assert all(moved)
    assert [step["decoded"][1] for step in steps_of(baseline)] == [0, 0, 0]
    assert all(min(step["peak_memory_bytes"]) > 2**24 for step in steps_of(baseline))


@pytest.mark.slow
def test_one_and_four_ranks_train_alike(rank_pool: RankPool, files: dict[str, Any]) -> None:
    one = settings_for(files, "one", dtype="float64", max_tokens_per_micro_batch=150)
    four = settings_for(files, "four", dtype="float64")
    assert rank_pool.run(1, train_on_rank, one) == [True]
    assert rank_pool.run(4, train_on_rank, four) == [True] * 4
    assert losses(one) == pytest.approx(losses(four), rel=1e-10)


def test_the_written_model_loads_back(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = settings_for(files, "loads", steps=1)
    rank_pool.run(1, train_on_rank, settings)
    folder = settings.folder / "model"
    assert AutoModelForImageTextToText.from_pretrained(folder).config.model_type == "qwen2_5_vl"
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|image_pad|>") > 0
    assert (folder / "preprocessor_config.json").exists()
    assert not list(settings.folder.glob(".*partial"))


@pytest.mark.slow
def test_adapters_in_bfloat16_change_only_what_they_adapt(rank_pool: RankPool, files: dict[str, Any]) -> None:
    lora = LoraSettings(rank=2)
    before = settings_for(files, "untrained", steps=1, optimizer=OptimizerSettings(learning_rate=0.0))
    settings = settings_for(files, "lora", steps=2, dtype="bfloat16", lora=lora, recompute=True)
    rank_pool.run(1, train_on_rank, before)
    assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    start, end = weights(before), weights(settings)
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed
    assert all(".self_attn." in name and "_proj" in name for name in changed)


def test_a_run_that_can_load_nothing_ends(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, samples=4, photos=False)
    for path in (tmp_path / "media").iterdir():
        path.write_bytes(b"gone")
    optimizer = OptimizerSettings(learning_rate=1e-3, warmup_steps=1, max_skipped_steps=1)
    lost = settings_for(files, "lost", steps=9, samples_per_step=2, loader=SKIP, optimizer=optimizer)
    with pytest.raises(TrainingError, match="no sample with loss could be loaded for 2 steps in a row"):
        rank_pool.run(1, train_on_rank, lost)


def test_a_file_broken_since_the_scan_ends_the_run_by_name(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path)
    (tmp_path / "media" / "4-0.jpg").write_bytes(b"no image")
    settings = settings_for(files, "broken", steps=4, samples_per_step=12)
    found = rank_pool.run(2, train_on_rank, settings, return_exceptions=True)
    for error in found:
        assert isinstance(error, LoaderError)
        assert "sample-4" in str(error)
        assert "4-0.jpg" in str(error)


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(SKIP, id="shadow"),
        pytest.param(LoaderSettings(mode="central", on_bad_sample="skip"), id="central", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_skipped_samples_carry_no_loss_and_are_listed(
    rank_pool: RankPool, tmp_path: Path, loader: LoaderSettings
) -> None:
    files = write_run(tmp_path)
    (tmp_path / "media" / "6.mp4").unlink()
    (tmp_path / "media" / "5-1.jpg").write_bytes(b"")
    held_out = EvalSettings(data=files["data"], table=files["table"], samples_per_step=5)
    settings = settings_for(
        files, "skipped", steps=2, samples_per_step=12, loader=loader, dtype="float64", evaluation=held_out
    )
    assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    assert sorted(steps_of(settings)[0]["bad_samples"]) == ["sample-5", "sample-6"]
    bad = json.loads((settings.folder / "bad_samples.json").read_text())
    assert {entry["sample_id"] for entry in bad} == {"sample-5", "sample-6"}
    assert "6.mp4" in next(entry["reason"] for entry in bad if entry["sample_id"] == "sample-6")
    first = [entry for entry in bad if entry["step"] == 0]
    assert {entry["joins_step"] for entry in first} == {6}, "behind the last step: the first none can have planned"
    scored = json.loads((settings.folder / "evaluation.json").read_text())
    assert (scored["samples"], set(scored["not_loaded"])) == (10, {"sample-5", "sample-6"})
    assert not {entry["replacement"] for entry in first} & {"sample-5", "sample-6"}

    data = tmp_path / "good.jsonl"
    lines = (tmp_path / "train.jsonl").read_text().splitlines(keepends=True)
    data.write_text("".join(line for row, line in enumerate(lines) if row not in (5, 6)))
    scan(tmp_path / "model", data, tmp_path / "good.parquet")
    good = settings_for(
        {**files, "data": (data,), "table": tmp_path / "good.parquet"},
        "good",
        steps=1,
        samples_per_step=10,
        dtype="float64",
    )
    rank_pool.run(2, train_on_rank, good)
    assert losses(settings)[0] == pytest.approx(losses(good)[0], rel=1e-9)


@pytest.mark.slow
def test_a_step_of_which_nothing_could_be_loaded_moves_no_weight(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, photos=False)
    data, table = tmp_path / "seen.jsonl", tmp_path / "seen.parquet"
    lines = (tmp_path / "train.jsonl").read_text().splitlines(keepends=True)
    data.write_text("".join(line for line in lines if "media/" in line))
    scan(tmp_path / "model", data, table)
    files = {**files, "data": (data,), "table": table}
    still = settings_for(files, "still", steps=1, samples_per_step=3, optimizer=OptimizerSettings(learning_rate=0.0))
    assert rank_pool.run(2, train_on_rank, still) == [True, True]
    for file in (tmp_path / "media").iterdir():
        file.unlink()
    gone = settings_for(files, "gone", steps=3, samples_per_step=3, loader=SKIP)
    assert rank_pool.run(2, train_on_rank, gone) == [True, True]
    assert [(step["grad_norm"], step["loss_tokens"]) for step in steps_of(gone)] == [(None, 0)] * 3
    assert_same_bits(weights(still), weights(gone))


@pytest.mark.slow
def test_one_rank_gives_the_same_bits_balanced_or_not(rank_pool: RankPool, files: dict[str, Any]) -> None:
    on, off = settings_for(files, "bits"), settings_for(files, "bits", balance=OFF)
    for settings in (on, off):
        rank_pool.run(1, train_on_rank, settings)
    assert losses(on) == losses(off)
    assert_same_bits(weights(on), weights(off))


def test_a_dataset_changed_since_the_scan_is_refused(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path)
    with (tmp_path / "train.jsonl").open("a") as data:
        data.write('{"messages": [{"role": "user", "content": "late"}, {"role": "assistant", "content": "x"}]}\n')
    with pytest.raises(MetadataError, match="changed since the scan"):
        rank_pool.run(2, train_on_rank, settings_for(files, "changed"))


def test_ranks_with_different_tables_are_told(rank_pool: RankPool, tmp_path: Path) -> None:
    write_run(tmp_path / "rank0")
    write_run(tmp_path / "rank1", samples=10)
    found = rank_pool.run(2, _train_own, tmp_path, return_exceptions=True)
    for error in found:
        assert isinstance(error, RankDisagreementError)
        assert "the dataset differs: rank 0 has" in str(error)


def _train_own(group: Any, folder: Path) -> bool:
    own = folder / f"rank{group.rank()}"
    files = {"model": own / "model", "data": (own / "train.jsonl",), "table": own / "train.parquet", "runs": folder}
    return train_on_rank(group, settings_for(files, "own"))


def test_more_ranks_than_samples_and_steps_too_large_are_refused(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, samples=3)
    with pytest.raises(SettingsError, match="3 samples for 4 ranks; start at most 3 ranks"):
        rank_pool.run(4, train_on_rank, settings_for(files, "few", samples_per_step=3))
    with pytest.raises(SettingsError, match="3 samples, fewer than samples_per_step=6"):
        rank_pool.run(1, train_on_rank, settings_for(files, "few"))


def test_no_loss_token_anywhere_is_refused(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path)
    record = {"messages": [{"role": "user", "content": "hello"}]}
    (tmp_path / "train.jsonl").write_text((json.dumps(record) + "\n") * 4)
    scan(tmp_path / "model", tmp_path / "train.jsonl", tmp_path / "train.parquet")
    with pytest.raises(MetadataError, match="no sample has a token that enters the loss"):
        rank_pool.run(2, train_on_rank, settings_for(files, "no loss", samples_per_step=4))


@pytest.mark.slow
def test_gradients_that_stay_infinite_end_the_run(rank_pool: RankPool, files: dict[str, Any]) -> None:
    optimizer = OptimizerSettings(learning_rate=float("inf"), warmup_steps=1, max_skipped_steps=1)
    with pytest.raises(TrainingError, match=r"not finite for 2 steps in a row; lower optimizer\.learning_rate"):
        rank_pool.run(2, train_on_rank, settings_for(files, "infinite", steps=6, optimizer=optimizer))


@pytest.mark.slow
def test_times_that_tell_nothing_leave_the_analytic_costs(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = settings_for(files, "noise", steps=1, balance=BalanceSettings())
    rank_pool.run(2, train_within, settings, _packs_take_the_same_time)
    costs = [json.loads(path.read_text())["costs"] for path in settings.folder.glob("checkpoints/*/progress.json")]
    assert costs == [{"schedule": [{"from_step": 0, "costs": None}]}]


@contextmanager
def _packs_take_the_same_time(rank: int) -> Iterator[None]:
    with mock.patch("trimtab.training.calibrate._run", return_value=1e6):
        yield


def test_observing_moves_nothing_and_tells_the_gain(rank_pool: RankPool, files: dict[str, Any]) -> None:
    observed = settings_for(files, "observed", balance=BalanceSettings(mode="observe", costs="analytic"))
    rank_pool.run(2, train_on_rank, observed)
    for step in steps_of(observed):
        assert step["step_ratio"] == step["step_ratio_before"]
        assert step["observed_step_ratio"] <= step["step_ratio"]
        assert step["moved_bytes"] == 0
