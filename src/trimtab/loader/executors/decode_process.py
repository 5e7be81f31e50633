"""The parent's end of one decode process: killable, so no file can hang the run."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait

from trimtab.errors import MediaError
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.executors.shared_memory import SharedPatches
from trimtab.loader.executors.socket_messages import receive_message, send_message

_POLL_S = 0.2
_START_S = 120.0
_STDERR = 2  # not sys.stderr, which may be no file: in notebooks, under pytest


class DecodeProcessDiedError(Exception):
    """The process is gone; its task may be tried in another."""


class DecodeProcess:
    """A running ``decode_worker``."""

    def __init__(self) -> None:
        """Start it."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "trimtab.loader.executors.decode_worker"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=_STDERR)
        self._connection = ours
        self._is_ready = False

    @property
    def alive(self) -> bool:
        """Whether it can take a task."""
        return self._process.poll() is None

    def decode(
        self, task: DecodeTask, memory: SharedPatches, *, timeout_s: float, cancelled: Callable[[], bool]
    ) -> None:
        """Decode a task into ``memory``.

        Raises:
            MediaError: it cannot be decoded, or took longer than ``timeout_s`` (the process is then killed).
            DecodeProcessDiedError: the process died, or was killed because of ``cancelled``.
        """
        try:
            if not self._is_ready:
                self._answer(_START_S, cancelled)
                self._is_ready = True
            send_message(self._connection, (task, timeout_s), memory.descriptor)
            problem = self._answer(timeout_s, cancelled)
        except TimeoutError:
            self.kill()
            if not self._is_ready:
                raise DecodeProcessDiedError(f"it did not start within {_START_S:.0f} s") from None
            raise MediaError(
                f"{task.visual.source}: decoding took longer than loader.item_timeout_s={timeout_s:g} s and was "
                "stopped; remove or re-encode the file, or raise the limit"
            ) from None
        except (EOFError, OSError) as error:
            self.kill()
            raise DecodeProcessDiedError(str(error)) from error
        if problem is not None:
            raise MediaError(problem)

    def _answer(self, timeout_s: float, cancelled: Callable[[], bool]) -> str | None:
        deadline = time.monotonic() + timeout_s
        while not wait([self._connection], _POLL_S):
            if cancelled():
                raise EOFError
            if time.monotonic() > deadline:
                raise TimeoutError
        problem: str | None = receive_message(self._connection)[0]
        return problem

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
