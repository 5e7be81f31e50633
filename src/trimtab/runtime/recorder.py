"""Times the phases of a step on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

COMPUTE_PHASES = ("vision", "language", "optimizer")


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """One step on one rank.

    Attributes:
        wall_ms: wall time of each phase; waiting for other ranks counts where it happened.
        busy_ms: time this rank spent computing, waiting left out.
    """

    wall_ms: dict[str, float]
    busy_ms: float


class PhaseClock:
    """A stopwatch that always belongs to one phase; ``mark`` switches it.

    Busy time is the main thread's processor time while torch computes on one thread (the thread that blocks in a
    collective uses none); with several threads or on a CUDA device it is the wall time of the compute phases.
    """

    def __init__(self) -> None:
        """Start outside any phase."""
        self._phase: str | None = None
        self._wall: dict[str, float] = {}
        self._busy = 0.0
        self._busy_clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._began = (0.0, 0.0)

    def mark(self, phase: str) -> None:
        """End the current phase and begin another."""
        self._close()
        self._phase = phase
        self._began = (time.perf_counter(), self._busy_clock())

    def finish(self) -> PhaseTimes:
        """End the step and return its times; the next step starts from zero."""
        self._close()
        self._phase = None
        times = PhaseTimes(wall_ms={k: v * 1e3 for k, v in self._wall.items()}, busy_ms=self._busy * 1e3)
        self._wall, self._busy = {}, 0.0
        return times

    def _close(self) -> None:
        if self._phase is None:
            return
        wall, busy = self._began
        self._wall[self._phase] = self._wall.get(self._phase, 0.0) + time.perf_counter() - wall
        if self._phase in COMPUTE_PHASES:
            self._busy += self._busy_clock() - busy
