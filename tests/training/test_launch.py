"""Ranks are started and ended by the process that is signalled, whenever the signal comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import FrameType
from typing import Any

import pytest

from trimtab.training.launch import launch


class SignalledOnTheWay:
    """Settings whose first rank is being started when the signal comes: they are pickled just then."""

    ranks = 2

    def __init__(self) -> None:
        self._sent = False

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._sent:
            self._sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return SignalledOnTheWay, ()


class Interrupted(BaseException):
    """What the command makes of a signal before ranks are started."""


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def never_trains(settings: Any, ranks: Any) -> bool:
    raise AssertionError("a rank trained")


@pytest.mark.slow
def test_a_signal_while_ranks_are_started_ends_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        assert launch(never_trains, SignalledOnTheWay()) == 143
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert "stopped by a signal" in capsys.readouterr().err
    assert not multiprocessing.active_children()
