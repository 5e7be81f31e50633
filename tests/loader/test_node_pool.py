"""Decode processes of one machine: right results, shared, within their budget, and no file can hang or end a run."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.loader.media_cases import PHOTO, ask, plain, whole, write_clip

from trimtab.errors import LoaderError, MediaError
from trimtab.loader.executors.node_client import NodeClient
from trimtab.loader.executors.node_pool import NodePool
from trimtab.loader.executors.node_server import NodeServer


@pytest.fixture
def pool() -> Iterator[NodePool]:
    pool = NodePool(2, budget_bytes=64 << 20, item_timeout_s=10)
    yield pool
    pool.close()


def test_patches_equal_the_plain_pipelines_whole_and_sliced_and_are_decoded_once(
    pool: NodePool, tmp_path: Path
) -> None:
    clip = whole(write_clip(tmp_path / "clip.mp4"), "video")
    assert clip.frame_stop == 4
    requests = [ask(clip), ask(clip, (1, 3)), ask(clip, (3, 4)), ask(whole(PHOTO)), ask(clip, (2, 2))]
    leases = [pool.request(request) for request in requests * 2]
    for lease in leases:
        patches = lease.answer.result(timeout=60).patches
        np.testing.assert_array_equal(patches, plain(lease.request))
        assert not (patches.size and patches.flags.writeable)
    assert pool.decodes == 2
    assert sum(lease.answer.result().decoded for lease in leases) == 2
    assert pool.transport().moved_bytes == sum(plain(request).nbytes for request in requests * 2)


def test_another_rank_is_served_from_the_same_memory(pool: NodePool, tmp_path: Path) -> None:
    server = NodeServer(pool)
    client = NodeClient(server.address, sharers=[0, 1])
    server.all_connected()
    assert not Path(server.address).parent.exists()
    try:
        clip = whole(write_clip(tmp_path / "clip.mp4"), "video")
        own, theirs = ask(clip, (0, 2)), ask(clip, (2, 4))
        leases = [server.request(own), client.request(theirs)]
        for lease, request in zip(leases, (own, theirs), strict=True):
            np.testing.assert_array_equal(lease.answer.result(timeout=60).patches, plain(request))
        assert pool.decodes == 1
        assert client.transport().moved_bytes == plain(theirs).nbytes
        with pytest.raises(MediaError, match=r"gone\.mp4"):
            client.request(ask(gone(tmp_path))).answer.result(timeout=60)
    finally:
        server.close()
    with pytest.raises(LoaderError, match="has ended"):
        client.request(own).answer.result(timeout=60)
    client.close()


def gone(folder: Path):  # type: ignore[no-untyped-def]
    path = write_clip(folder / "gone.mp4")
    task = whole(path, "video")
    path.unlink()
    return task


def test_a_missing_file_is_named_and_the_process_lives_on(pool: NodePool, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"gone\.mp4"):
        pool.request(ask(gone(tmp_path))).answer.result(timeout=60)
    assert len(pool.request(ask(whole(PHOTO))).answer.result(timeout=60).patches)


@pytest.mark.slow
def test_a_decode_that_hangs_is_stopped_and_named(tmp_path: Path) -> None:
    pool = NodePool(1, budget_bytes=64 << 20, item_timeout_s=3)
    try:
        assert len(pool.request(ask(whole(PHOTO))).answer.result(timeout=60).patches)
        _signal_decoders(signal.SIGSTOP)
        clip = whole(write_clip(tmp_path / "clip.mp4"), "video")
        with pytest.raises(MediaError, match=r"clip\.mp4: decoding took longer than loader\.item_timeout_s=3 s"):
            pool.request(ask(clip)).answer.result(timeout=60)
        assert len(pool.request(ask(clip)).answer.result(timeout=60).patches)
    finally:
        pool.close()


def test_a_killed_process_is_replaced_and_its_work_done_again(tmp_path: Path) -> None:
    pool = NodePool(1, budget_bytes=64 << 20, item_timeout_s=30)
    try:
        assert len(pool.request(ask(whole(PHOTO))).answer.result(timeout=60).patches)
        _signal_decoders(signal.SIGSTOP)
        request = ask(whole(write_clip(tmp_path / "clip.mp4"), "video"))
        lease = pool.request(request)
        time.sleep(0.3)
        assert not lease.answer.done()
        _signal_decoders(signal.SIGKILL)
        np.testing.assert_array_equal(lease.answer.result(timeout=60).patches, plain(request))
    finally:
        pool.close()


def test_a_file_that_kills_its_process_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PHOTO))  # the decode processes cannot import trimtab
    monkeypatch.chdir("/")
    monkeypatch.setattr("sys.executable", "/bin/false")
    pool = NodePool(1, budget_bytes=64 << 20, item_timeout_s=30)
    try:
        with pytest.raises(MediaError, match=r"astronaut\.png: the decode process died 3 times"):
            pool.request(ask(whole(PHOTO))).answer.result(timeout=60)
    finally:
        pool.close()


def test_processes_end_with_the_pool_and_open_requests_fail(tmp_path: Path) -> None:
    pool = NodePool(1, budget_bytes=64 << 20, item_timeout_s=30)
    assert len(pool.request(ask(whole(PHOTO))).answer.result(timeout=60).patches)
    _signal_decoders(signal.SIGSTOP)
    lease = pool.request(ask(whole(write_clip(tmp_path / "clip.mp4"), "video")))
    pool.close()
    with pytest.raises(LoaderError, match="were ended"):
        lease.answer.result(timeout=5)
    assert not _decoders()


def test_a_budget_too_small_for_one_step_still_finishes_and_later_steps_wait(tmp_path: Path) -> None:
    tasks = [whole(write_clip(tmp_path / f"{n}.mp4"), "video") for n in range(6)]
    pool = NodePool(2, budget_bytes=tasks[0].nbytes, item_timeout_s=30)
    try:
        leases = [pool.request(ask(task, step=n // 3)) for n, task in enumerate(tasks)]
        for lease in leases[:3]:
            np.testing.assert_array_equal(lease.answer.result(timeout=60).patches, plain(lease.request))
        time.sleep(0.2)
        assert not any(lease.answer.done() for lease in leases[3:]), "step 1 waits until step 0 is released"
        for lease in leases[:3]:
            lease.release()
        for lease in leases[3:]:
            np.testing.assert_array_equal(lease.answer.result(timeout=60).patches, plain(lease.request))
        assert pool.peak_bytes == 3 * tasks[0].nbytes
    finally:
        pool.close()


def test_descriptors_beyond_a_thousand_are_no_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        pool = NodePool(1, budget_bytes=1 << 20, item_timeout_s=30)
        lease = pool.request(ask(whole(write_clip(tmp_path / "a.mp4"), "video")))
        np.testing.assert_array_equal(lease.answer.result(timeout=60).patches, plain(lease.request))
        pool.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_unexpected_error_is_an_answer_too(tmp_path: Path) -> None:
    with mock.patch("trimtab.loader.executors.node_pool.DecodeProcess", side_effect=RuntimeError("no luck")):
        pool = NodePool(1, budget_bytes=1 << 20, item_timeout_s=30)
        lease = pool.request(ask(whole(write_clip(tmp_path / "a.mp4"), "video")))
        with pytest.raises(MediaError, match=r"a\.mp4: decoding ended in RuntimeError: no luck"):
            lease.answer.result(timeout=60)
        pool.close()


def test_an_unexpected_error_leaves_no_memory_behind(tmp_path: Path) -> None:
    tasks = [whole(write_clip(tmp_path / f"{n}.mp4"), "video") for n in range(4)]
    process = mock.Mock(alive=True)
    process.decode.side_effect = RuntimeError("no luck")
    with mock.patch("trimtab.loader.executors.node_pool.DecodeProcess", return_value=process):
        pool = NodePool(1, budget_bytes=1 << 30, item_timeout_s=30)
        leases = [pool.request(ask(task)) for task in tasks]
        for lease in leases:
            with pytest.raises(MediaError, match="no luck"):
                lease.answer.result(timeout=60)
        pool.close()
    assert process.kill.call_count >= len(tasks), "a process in an unknown state takes no other task"
    assert not _shared_memories()


def test_an_answer_that_cannot_be_mapped_is_an_error_and_leaves_no_memory_behind(tmp_path: Path) -> None:
    pool = NodePool(1, budget_bytes=0, item_timeout_s=30)
    with mock.patch("trimtab.loader.executors.shared_memory._map", side_effect=OSError(12, "no memory")):
        lease = pool.request(ask(whole(write_clip(tmp_path / "a.mp4"), "video")))
        with pytest.raises(LoaderError, match=r"a\.mp4: its patches cannot be mapped"):
            lease.answer.result(timeout=60)
    lease.release()
    assert not _shared_memories()
    pool.close()


def _shared_memories() -> list[str]:
    """Shared memory this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(descriptor))
    return [name for name in names if "trimtab-patches" in name]


def _decoders() -> list[int]:
    """Decode processes that are children of this one and no other test's pool."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return [int(row.split()[0]) for row in listing.stdout.splitlines() if "executors.decode_worker" in row]


def _signal_decoders(number: signal.Signals) -> None:
    for pid in _decoders():
        os.kill(pid, number)
