"""Turns Ctrl-C and SIGTERM into a wish to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self


class StopSignal:
    """``wanted`` becomes true on SIGINT or SIGTERM; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        """Install the handlers; call from the main thread."""
        self.wanted = False
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        """Hear signals within the block only."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the earlier handlers back, whatever happened."""
        self.restore()

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True
