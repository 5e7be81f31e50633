"""Decode processes: right results, and no file can hang or take down a run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import skimage

from trimtab.errors import MediaError
from trimtab.families.registry import family_for
from trimtab.loader.decode_cache import DecodeCache
from trimtab.loader.decode_worker import DecodeTask
from trimtab.loader.decode_workers import DecodeWorkers
from trimtab.media.patches import read_patches
from trimtab.media.visual import describe

GEOMETRY = family_for("qwen2_5_vl").defaults
PHOTO = str(Path(skimage.__file__).parent / "data" / "astronaut.png")


@pytest.fixture
def workers() -> Iterator[DecodeWorkers]:
    pool = DecodeWorkers(2, item_timeout_s=10)
    yield pool
    pool.close()


def task_for(path: str) -> DecodeTask:
    visual = describe("image", path, GEOMETRY)
    return DecodeTask(visual=visual, geometry=GEOMETRY, frame_start=0, frame_stop=1)


def test_patches_equal_those_read_in_this_process(workers: DecodeWorkers) -> None:
    task = task_for(PHOTO)
    expected = read_patches(task.visual, GEOMETRY)
    for future in [workers.submit(task) for _ in range(4)]:
        np.testing.assert_array_equal(future.result(timeout=30), expected)


def test_a_missing_file_is_named_and_the_process_lives_on(workers: DecodeWorkers, tmp_path: Path) -> None:
    photo = tmp_path / "gone.png"
    photo.write_bytes(Path(PHOTO).read_bytes())
    task = task_for(str(photo))
    photo.unlink()
    with pytest.raises(MediaError, match=r"gone\.png"):
        workers.submit(task).result(timeout=30)
    assert len(workers.submit(task_for(PHOTO)).result(timeout=30))


def test_a_decode_that_hangs_is_stopped_and_named(tmp_path: Path) -> None:
    task = task_for(PHOTO)
    pool = DecodeWorkers(1, item_timeout_s=3)
    try:
        assert len(pool.submit(task).result(timeout=30))
        _signal_decoders(signal.SIGSTOP)
        with pytest.raises(MediaError, match=r"astronaut\.png: decoding took longer than loader\.item_timeout_s=3 s"):
            pool.submit(task).result(timeout=30)
        assert len(pool.submit(task).result(timeout=30))
    finally:
        pool.close()


def test_a_killed_process_is_replaced() -> None:
    task = task_for(PHOTO)
    pool = DecodeWorkers(1, item_timeout_s=10)
    try:
        assert len(pool.submit(task).result(timeout=30))
        _signal_decoders(signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(MediaError, match="the decode process died"):
            pool.submit(task).result(timeout=30)
        assert len(pool.submit(task).result(timeout=30))
    finally:
        pool.close()


def test_processes_end_with_the_pool() -> None:
    pool = DecodeWorkers(1, item_timeout_s=10)
    assert len(pool.submit(task_for(PHOTO)).result(timeout=30))
    pool.close()
    assert not _decoders()


def _decoders() -> list[int]:
    """Decode processes that are children of this one and no other test's pool."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return [int(row.split()[0]) for row in listing.stdout.splitlines() if "trimtab.loader.decode_worker" in row]


def _signal_decoders(number: signal.Signals) -> None:
    for pid in _decoders():
        os.kill(pid, number)


def test_the_cache_stays_within_its_budget() -> None:
    cache = DecodeCache(budget_bytes=100)
    item = np.zeros(10, dtype=np.float32)
    for key in ("a", "b"):
        cache.put(key, item)
    assert cache.get("a") is item
    cache.put("c", item)
    assert cache.get("b") is None
    assert cache.get("a") is item
    cache.put("too large", np.zeros(50, dtype=np.float32))
    assert cache.get("too large") is None
