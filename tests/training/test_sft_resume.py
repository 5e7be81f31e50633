"""Supervised runs that stop and go on, and what their checkpoints hold."""

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

import pytest
from tests.training.sft_run import assert_same_bits, losses, settings_for, weights
from tests.training.small_run import packs_take_a_microsecond_a_row, scan, train_on_rank, train_within, write_run

from trimtab.errors import CheckpointError
from trimtab.testing import RankPool
from trimtab.training.settings import BalanceSettings, LoraSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("run"))


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
