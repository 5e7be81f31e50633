"""Whole supervised runs on real ranks and real files."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tests.chat_tokenizer import chat_tokenizer
from tests.training.small_run import (
    packs_take_a_microsecond_a_row,
    scan,
    steps_of,
    train_on_rank,
    train_within,
    write_run,
)
from transformers import AutoModelForImageTextToText, AutoTokenizer

from trimtab.errors import (
    CheckpointError,
    LoaderError,
    MetadataError,
    RankDisagreementError,
    SettingsError,
    TrainingError,
)
from trimtab.families.registry import family_for
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.settings import BalanceSettings, EvalSettings, LoraSettings, OptimizerSettings, SFTSettings

ON = BalanceSettings(costs="analytic")
OFF, CENTRAL, SKIP = (
    BalanceSettings(mode="off", costs="analytic"),
    LoaderSettings(mode="central"),
    LoaderSettings(on_bad_sample="skip"),
)
FAST = OptimizerSettings(learning_rate=3e-3, warmup_steps=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("run"))


def settings_for(files: dict[str, Any], name: str, **changes: Any) -> SFTSettings:
    plain: dict[str, Any] = {
        "steps": 3,
        "samples_per_step": 6,
        "name": name,
        "timeout_s": 30,
        "optimizer": FAST,
        "balance": ON,
    }
    return SFTSettings(**{**files, **plain, **changes})


def losses(settings: SFTSettings) -> list[float]:
    return [step["loss"] for step in steps_of(settings)]


def weights(settings: SFTSettings) -> dict[str, torch.Tensor]:
    model = AutoModelForImageTextToText.from_pretrained(settings.folder / "model", dtype=torch.float64)
    return dict(model.state_dict())


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


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


@pytest.mark.slow
def test_held_out_samples_are_scored(rank_pool: RankPool, files: dict[str, Any]) -> None:
    evaluation = EvalSettings(data=files["data"], table=files["table"], samples_per_step=5)
    settings = settings_for(files, "scored", steps=25, evaluation=evaluation)
    rank_pool.run(2, train_on_rank, settings)
    result = json.loads((settings.folder / "evaluation.json").read_text())
    assert result["samples"] == 12
    assert result["with_pixels"] == sum(result["right"].values()) / 12
    generated = {f"sample-{row}": generate_answer(settings, row) for row in (3, 7, 11)}
    for sample_id, answer in generated.items():
        assert result["right"][sample_id] == (answer == "blue")
    assert result["with_pixels"] > 0


def generate_answer(settings: SFTSettings, row: int) -> str:
    """What the stock model generates greedily for a text-only sample."""
    model = AutoModelForImageTextToText.from_pretrained(settings.folder / "model")
    tokenizer = chat_tokenizer()
    question = f"Which colour is the square {row}?"
    messages = [{"role": "user", "content": question}]
    template = family_for("qwen2_5_vl").chat_template
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt")
    generated = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(generated, skip_special_tokens=True))


@pytest.mark.slow
def test_resume_is_exact(rank_pool: RankPool, files: dict[str, Any]) -> None:
    whole = settings_for(files, "whole", steps=4, dtype="float64")
    rank_pool.run(2, train_on_rank, whole)
    assert (
        rank_pool.run(2, train_within, settings_for(files, "parts", steps=4, dtype="float64"), _stop_soon)
        == [False] * 2
    )
    assert len(losses(settings_for(files, "parts"))) == 1
    parts = settings_for(files, "parts", steps=4, dtype="float64", resume=True)
    assert rank_pool.run(2, train_on_rank, parts) == [True, True]
    assert losses(parts) == losses(whole)
    assert_same_bits(weights(parts), weights(whole))


@pytest.mark.slow
def test_a_fresh_start_sets_an_earlier_runs_checkpoint_aside(rank_pool: RankPool, files: dict[str, Any]) -> None:
    first = settings_for(files, "twice", steps=2)
    rank_pool.run(1, train_on_rank, first)
    assert (first.folder / "checkpoints" / "step-000002").is_dir()
    rank_pool.run(1, train_on_rank, settings_for(files, "twice", steps=3, stop_after=1))
    assert sorted(path.name for path in (first.folder / "checkpoints").iterdir()) == ["previous", "step-000001"]


@pytest.mark.slow
def test_resume_refuses_other_data_of_the_same_size(rank_pool: RankPool, files: dict[str, Any], tmp_path: Path) -> None:
    rank_pool.run(1, train_on_rank, settings_for(files, "moved", steps=1))
    lines = files["data"][0].read_text().splitlines(keepends=True)
    other = files["data"][0].with_name("other.jsonl")
    other.write_text("".join(reversed(lines)))
    scan(files["model"], other, tmp_path / "other.parquet")
    changed = {"data": (other,), "table": tmp_path / "other.parquet", "resume": True}
    with pytest.raises(CheckpointError, match="it was trained on other data"):
        rank_pool.run(1, train_on_rank, settings_for({**files, **changed}, "moved", steps=2))


def test_a_run_that_can_load_nothing_ends(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, samples=4, photos=False)
    for path in (tmp_path / "media").iterdir():
        path.write_bytes(b"gone")
    optimizer = OptimizerSettings(learning_rate=1e-3, warmup_steps=1, max_skipped_steps=1)
    lost = settings_for(files, "lost", steps=9, samples_per_step=2, loader=SKIP, optimizer=optimizer)
    with pytest.raises(TrainingError, match="no sample with loss could be loaded for 2 steps in a row"):
        rank_pool.run(1, train_on_rank, lost)


@pytest.mark.slow
def test_resume_with_another_number_of_ranks(rank_pool: RankPool, files: dict[str, Any]) -> None:
    rank_pool.run(2, train_within, settings_for(files, "fewer", steps=4, dtype="float64"), _stop_soon)
    parts = settings_for(files, "fewer", steps=4, dtype="float64", resume=True)
    rank_pool.run(1, train_on_rank, parts)
    whole = settings_for(files, "whole again", steps=4, dtype="float64")
    rank_pool.run(1, train_on_rank, whole)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-10)


@contextmanager
def _stop_soon(rank: int) -> Iterator[None]:
    """Send this rank SIGTERM as soon as the run listens for it, which is before the first step ends."""
    if rank == 1:
        threading.Thread(target=_terminate_once_heard, daemon=True).start()
    yield


def _terminate_once_heard() -> None:
    for _ in range(3000):
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.01)


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
def test_a_resume_with_other_adapters_asks_for_those_of_the_checkpoint(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    first = settings_for(files, "adapted", steps=2, stop_after=1, lora=LoraSettings(rank=2))
    assert rank_pool.run(1, train_on_rank, first) == [True]
    for lora in (LoraSettings(rank=4), LoraSettings()):
        other = replace(first, stop_after=None, resume=True, lora=lora)
        (error,) = rank_pool.run(1, train_on_rank, other, return_exceptions=True)
        assert isinstance(error, CheckpointError)
        assert f"lora.rank: was 2, now {lora.rank}; put back" in str(error)
        assert "remove" not in str(error)
    assert list((first.folder / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_a_full_disk_ends_the_run_by_name_and_leaves_no_half_checkpoint(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    settings = settings_for(files, "full", steps=2)
    for error in rank_pool.run(2, train_within, settings, _limit_files, return_exceptions=True):
        assert isinstance(error, CheckpointError)
        assert "could not write checkpoint" in str(error)
        assert "MiB free, the checkpoint takes more than" in str(error)
    assert list((settings.folder / "checkpoints").iterdir()) == []


@contextmanager
def _limit_files(rank: int) -> Iterator[None]:
    """What a full disk does to rank 1, without one: writing past 100 kB fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
def test_measured_costs_are_kept_in_the_checkpoint(rank_pool: RankPool, files: dict[str, Any]) -> None:
    first = settings_for(files, "measured", steps=2, stop_after=1, balance=BalanceSettings())
    rank_pool.run(2, train_within, first, packs_take_a_microsecond_a_row)
    costs = [json.loads(path.read_text())["costs"] for path in first.folder.glob("checkpoints/*/progress.json")]
    measured = costs[0]["schedule"][0]["costs"]
    assert measured["language"]["b"] == pytest.approx(1e3)
    assert measured["frame"]["b"] == pytest.approx(1e3)
    rank_pool.run(2, train_on_rank, settings_for(files, "measured", steps=2, balance=BalanceSettings(), resume=True))
    kept = [json.loads(path.read_text())["costs"] for path in first.folder.glob("checkpoints/*/progress.json")]
    assert kept == costs


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
