"""The pool's handle of one rank process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

from trimtab.testing import worker
from trimtab.testing.messages import Answer, LeaveWorld, Task


class RankProcess:
    """One process that runs tasks, in a process group of its own (it may start processes)."""

    def __init__(self, context: ForkServerContext, directory: Path, index: int) -> None:
        self.connection, theirs = context.Pipe()
        self._stack_file = directory / f"process-{index}.stack"
        # Not a daemon: a rank may start processes of its own, such as decoders.
        self._process = context.Process(
            target=worker.serve, args=(theirs, self._stack_file), name=f"rank-process-{index}"
        )
        self._process.start()
        theirs.close()

    def is_alive(self) -> bool:
        """Whether the process can take another task."""
        return not self.connection.closed and self._process.is_alive()

    def send(self, message: Task | LeaveWorld) -> None:
        """Pass a message on; a dead process is noticed when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> Answer | None:
        """The answer, or None where the process died."""
        try:
            answer: Answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None
        return answer

    def cause_of_death(self) -> str:
        """How a dead process ended, in words."""
        self._process.join(timeout=1.0)
        code = self._process.exitcode
        if code is None:
            return "closed its connection"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def ask_for_stack(self) -> None:
        """Make the process write the stacks of its threads."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.pid is not None and self._stack_file.exists():  # else no handler: the signal would kill
                os.kill(self._process.pid, signal.SIGUSR1)

    def stack(self, wait_s: float = 0.5) -> str:
        """What the process wrote after `ask_for_stack`."""
        give_up = time.monotonic() + wait_s
        while time.monotonic() < give_up:
            text = self._stack_file.read_text() if self._stack_file.exists() else ""
            if "Current thread" in text and text.endswith("\n"):  # the main thread comes last: below fn is only serve()
                return text.partition(f'  File "{worker.__file__}"')[0]
            time.sleep(0.02)
        return "its stack could not be read"

    def kill(self) -> None:
        """End the process and those it started, at once."""
        if self._process.pid is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # it is dead, or has not made its process group yet
                self._process.kill()
        self._process.join(timeout=5.0)
        self.connection.close()

    def close(self, wait_s: float = 2.0) -> None:
        """Let the process end by itself; kill it where it does not."""
        self.connection.close()
        self._process.join(timeout=wait_s)
        self.kill()
