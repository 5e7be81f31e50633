"""What a simulation is at: a line that renews itself on a terminal, elsewhere a line now and then if it takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console

_FIRST_S, _EVERY_S = 5.0, 15.0


class SimulationProgress:
    """On standard error, while its block runs."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            console: where to write; by default standard error.
            clock: seconds.
        """
        self._console, self._clock = console or Console(stderr=True), clock
        self._status = self._console.status("reading")
        self._due = clock() + _FIRST_S

    def __enter__(self) -> SimulationProgress:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def update(self, what: str) -> None:
        """Say what is being done now."""
        if self._console.is_terminal:
            self._status.update(what)
        elif self._clock() >= self._due:
            self._due = self._clock() + _EVERY_S
            self._console.print(what, highlight=False, markup=False, soft_wrap=True)
