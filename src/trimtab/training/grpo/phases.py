"""Times the phases of a GRPO step on one rank; a phase inside another interrupts it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PHASES = ("data", "rollout", "reward", "inference", "update")


class PhaseStopwatch:
    """``with watch.phase("rollout"): …``; ``finish`` returns milliseconds and starts anew.

    Busy time is the main thread's processor time while torch computes on one thread (waiting for other ranks uses
    none); otherwise it is wall time.
    """

    def __init__(self) -> None:
        """Start outside any phase."""
        self._stack: list[str] = []
        self._wall = dict.fromkeys(PHASES, 0.0)
        self._busy = dict.fromkeys(PHASES, 0.0)
        self._busy_clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._began = (0.0, 0.0)
        self._planned_s = 0.0

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Time a plan; it stays part of the phase around it."""
        began = time.perf_counter()
        yield
        self._planned_s += time.perf_counter() - began

    def planned_ms(self) -> float:
        """Milliseconds of planning since the last call."""
        planned, self._planned_s = self._planned_s, 0.0
        return planned * 1e3

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a stretch as one of ``PHASES``."""
        self._close()
        self._stack.append(name)
        try:
            yield
        finally:
            self._close()
            self._stack.pop()

    def finish(self) -> tuple[dict[str, float], dict[str, float]]:
        """Wall and busy milliseconds of each phase."""
        times = ({k: v * 1e3 for k, v in self._wall.items()}, {k: v * 1e3 for k, v in self._busy.items()})
        self._wall, self._busy = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
        return times

    def _close(self) -> None:
        now = (time.perf_counter(), self._busy_clock())
        if self._stack:
            self._wall[self._stack[-1]] += now[0] - self._began[0]
            self._busy[self._stack[-1]] += now[1] - self._began[1]
        self._began = now
