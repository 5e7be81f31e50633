"""Ranks are started and ended by the process that is signalled, whenever the signal comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from trimtab.runtime.groups import Ranks
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


@dataclass(frozen=True)
class Deaf:
    """Settings of ranks that do not listen for signals yet."""

    folder: Path
    ranks: int = 2
    timeout_s: float = 60.0


def sleeps(settings: Deaf, ranks: Ranks) -> bool:
    (settings.folder / str(ranks.rank)).touch()
    time.sleep(60)
    raise AssertionError("no signal came")


def signal_once_there(folder: Path, number: int) -> None:
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.05)
    os.kill(os.getpid(), number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_ranks_listen_is_told_as_that(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = multiprocessing.active_children()  # of other tests
    sender = threading.Thread(target=signal_once_there, args=(tmp_path, number), daemon=True)
    sender.start()
    if number == signal.SIGTERM:
        assert launch(sleeps, Deaf(tmp_path)) == 143
    else:
        with pytest.raises(KeyboardInterrupt):
            launch(sleeps, Deaf(tmp_path))
    said = capsys.readouterr().err
    assert "stopped by a signal; --resume goes on from the last checkpoint, if there is one" in said
    assert "out of memory" not in said
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.slow
def test_a_signal_while_ranks_are_started_ends_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    others = multiprocessing.active_children()
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        assert launch(never_trains, SignalledOnTheWay()) == 143
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert "stopped by a signal" in capsys.readouterr().err
    assert set(multiprocessing.active_children()) <= set(others)
