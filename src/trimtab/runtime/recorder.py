"""Times the phases of a step on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import torch

COMPUTE_PHASES = ("vision", "language", "optimizer")


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """One step on one rank.

    Attributes:
        wall_ms: wall time of each phase; waiting for other ranks counts where it happened.
        compute_ms: time this rank spent computing in each compute phase.
        includes_waiting: ``compute_ms`` counts waiting for other ranks too.
    """

    wall_ms: dict[str, float]
    compute_ms: dict[str, float]
    includes_waiting: bool

    @property
    def busy_ms(self) -> float:
        """Computing time of the whole step."""
        return sum(self.compute_ms.values())


class PhaseClock:
    """A stopwatch that always belongs to one phase; ``mark`` switches it.

    Computing time is the main thread's processor time while torch computes on one thread (the thread that blocks in a
    collective uses none). With several threads it is the wall time of the compute phases, and on a CUDA device the
    time between events on the stream; both count waiting for other ranks.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Start outside any phase, for work on ``device`` (None: the CPU)."""
        self._phase: str | None = None
        self._wall: dict[str, float] = {}
        self._compute: dict[str, float] = {}
        self._waits = torch.get_num_threads() > 1
        self._busy_clock = time.perf_counter if self._waits else time.thread_time
        self._began = (0.0, 0.0)
        on_cuda = device is not None and device.type == "cuda"
        self._events: list[tuple[str | None, torch.cuda.Event]] | None = [] if on_cuda else None

    def mark(self, phase: str) -> None:
        """End the current phase and begin another."""
        self._switch(phase)
        self._began = (time.perf_counter(), self._busy_clock())

    def finish(self) -> PhaseTimes:
        """End the step and return its times; the next step starts from zero. Waits for the device."""
        self._switch(None)
        compute = self._compute if self._events is None else self._between_events(self._events)
        times = PhaseTimes(
            wall_ms={phase: seconds * 1e3 for phase, seconds in self._wall.items()},
            compute_ms=compute,
            includes_waiting=self._waits or self._events is not None,
        )
        self._wall, self._compute = {}, {}
        return times

    def _switch(self, phase: str | None) -> None:
        if self._events is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((phase, event))
        if self._phase is not None:
            wall, busy = self._began
            self._wall[self._phase] = self._wall.get(self._phase, 0.0) + time.perf_counter() - wall
            if self._phase in COMPUTE_PHASES:
                self._add(self._phase, (self._busy_clock() - busy) * 1e3)
        self._phase = phase

    def _between_events(self, events: list[tuple[str | None, torch.cuda.Event]]) -> dict[str, float]:
        """Milliseconds on the stream of each compute phase; forgets the events."""
        events[-1][1].synchronize()
        self._compute = {}
        for (phase, began), (_, ended) in pairwise(events):
            if phase in COMPUTE_PHASES:
                self._add(phase, began.elapsed_time(ended))
        events.clear()
        return self._compute

    def _add(self, phase: str, milliseconds: float) -> None:
        self._compute[phase] = self._compute.get(phase, 0.0) + milliseconds
