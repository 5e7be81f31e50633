"""A pool of decode processes on this machine: no service, nothing shared but pipes, each one killable.

A thread a process feeds it from one queue, so the next task goes to whichever process is free. A task that takes too
long, or whose process dies, ends in a MediaError naming the file; the process is replaced.
"""

from __future__ import annotations

import queue
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MediaError
from trimtab.loader.decode_worker import DecodeTask
from trimtab.loader.pipe_messages import read_message, write_message

Patches = NDArray[np.float32]


class DecodeWorkers:
    """``submit`` tasks, get futures of patches; ``close`` ends the processes."""

    def __init__(self, workers: int, *, item_timeout_s: float) -> None:
        """Start ``workers`` processes; each task may take ``item_timeout_s``."""
        self._timeout_s = item_timeout_s
        self._tasks: queue.Queue[tuple[DecodeTask, Future[Patches]] | None] = queue.Queue()
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._serve, name=f"decode-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: DecodeTask) -> Future[Patches]:
        """Queue a task; its future holds float32 [patches, patch_dim] or a MediaError."""
        future: Future[Patches] = Future()
        self._tasks.put((task, future))
        return future

    def close(self) -> None:
        """End the processes; tasks still queued are cancelled."""
        self._closed.set()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _serve(self) -> None:
        worker = _start()
        try:
            while (item := self._tasks.get()) is not None:
                task, future = item
                if self._closed.is_set() or not future.set_running_or_notify_cancel():
                    future.cancel()
                    continue
                try:
                    future.set_result(self._run(worker, task))
                except MediaError as error:
                    future.set_exception(error)
                if worker.poll() is not None:
                    worker = _start()
        finally:
            worker.kill()
            worker.wait()

    def _run(self, worker: subprocess.Popen[bytes], task: DecodeTask) -> Patches:
        assert worker.stdin is not None
        assert worker.stdout is not None
        source = task.visual.source
        try:
            write_message(worker.stdin, task)
            self._await_answer(worker)
            answer: Any = read_message(worker.stdout)
            if isinstance(answer, str):
                raise MediaError(answer)
            shape, dtype = answer
            patches = np.empty(shape, dtype=dtype)
            _read_into(worker.stdout, patches.data.cast("B"))
        except TimeoutError:
            _end(worker)
            raise MediaError(
                f"{source}: decoding took longer than loader.item_timeout_s={self._timeout_s:g} s and was stopped; "
                "remove or re-encode the file, or raise the limit"
            ) from None
        except (EOFError, BrokenPipeError, OSError) as error:
            _end(worker)
            raise MediaError(f"{source}: the decode process died ({error or 'no message'}); check the file") from error
        return patches

    def _await_answer(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout is not None
        deadline = time.monotonic() + self._timeout_s
        while not select.select([worker.stdout], [], [], 0.2)[0]:
            if self._closed.is_set() or time.monotonic() > deadline:
                raise TimeoutError


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trimtab.loader.decode_worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def _read_into(stream: Any, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        count = stream.readinto(buffer[filled:])
        if not count:
            raise EOFError
        filled += count
