"""Scores replies with the user's function, in a process of its own, within a time limit."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError, TrainingError
from trimtab.loader.pipe_messages import read_message, write_message
from trimtab.training.grpo.reward_call import RewardCall, RewardInput
from trimtab.training.grpo.settings import RewardSettings

_START_S = 60.0
_LARGEST = 1e12  # the spread of larger ones would overflow, and teach nothing


class Rewarder:
    """``score`` replies; one rank holds it and scores the whole step, so placement cannot matter to the function."""

    def __init__(self, settings: RewardSettings) -> None:
        """Start the process and load the function.

        Raises:
            SettingsError: the file or the function cannot be loaded.
        """
        self._settings = settings
        settings.check_file()
        path, _, name = settings.function.rpartition(":")
        mode = "batch" if settings.batch else "single"
        command = [sys.executable, "-m", "trimtab.training.grpo.reward_worker", path, name, mode]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, name="reward-answers", daemon=True).start()
        problem = self._answer(time.monotonic() + _START_S, "its loading")
        if problem is not None:
            self.close()
            raise SettingsError(f"reward.function={settings.function}: {problem}")

    def score(self, inputs: Sequence[RewardInput]) -> NDArray[np.float64]:
        """float64 [N], one finite reward a reply.

        Raises:
            TrainingError: the function raised, took too long, or returned something else than that; names the function
                and where it can the sample.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        self._ask(RewardCall(kind="score", inputs=tuple(inputs)))
        if self._settings.batch:
            return self._checked_list(self._value(deadline, inputs), inputs)
        rewards = [self._number(self._value(deadline, inputs, row), item) for row, item in enumerate(inputs)]
        return np.array(rewards, dtype=np.float64)

    def state_dict(self) -> Any:
        """What the user's file wants kept: its ``state_dict()``, or None."""
        self._ask(RewardCall(kind="save"))
        return self._value(time.monotonic() + self._settings.timeout_s, ())

    def load_state_dict(self, state: Any) -> None:
        """Hand it back to the file's ``load_state_dict``."""
        if state is not None:
            self._ask(RewardCall(kind="load", state=state))
            self._value(time.monotonic() + self._settings.timeout_s, ())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _ask(self, call: RewardCall) -> None:
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, call)
        except OSError as error:
            raise self._error(f"its process has ended ({error})") from error

    def _value(self, deadline: float, inputs: Sequence[RewardInput], row: int | None = None) -> Any:
        place = f"sample {inputs[row].sample_id}" if row is not None else f"{len(inputs)} replies"
        kind, value = self._answer(deadline, place)
        if kind == "error":
            raise self._error(f"{value} for {place}")
        return value

    def _answer(self, deadline: float, place: str) -> Any:
        try:
            answer = self._answers.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise self._error(
                f"took longer than reward.timeout_s={self._settings.timeout_s:g} s (at {place}) and was stopped; "
                "make it faster or raise the limit"
            ) from None
        if isinstance(answer, EOFError):
            raise self._error(f"ended its process at {place}; run the function by hand on that sample") from answer
        return answer

    def _read(self) -> None:
        try:
            while True:
                self._answers.put(read_message(self._process.stdout))  # type: ignore[arg-type]
        except EOFError as error:
            self._answers.put(error)

    def _checked_list(self, values: Any, inputs: Sequence[RewardInput]) -> NDArray[np.float64]:
        if not isinstance(values, (list, tuple)) or len(values) != len(inputs):
            found = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
            raise self._error(f"returned {found} for {len(inputs)} replies; return a list with one number a reply")
        return np.array([self._number(v, item) for v, item in zip(values, inputs, strict=True)], dtype=np.float64)

    def _number(self, value: Any, item: RewardInput) -> float:
        is_number = isinstance(value, bool | int | float)
        if is_number and abs(value) <= _LARGEST:
            return float(value)
        shown = repr(value)[:60] if not isinstance(value, int) else "a whole number too large"
        rule = f"finite and within {_LARGEST:g}" if is_number else f"a number, not of type {type(value).__name__}"
        raise self._error(
            f"returned {shown} for sample {item.sample_id}, reply {item.reply[:60]!r}; a reward must be {rule}"
        )

    def _error(self, problem: str) -> TrainingError:
        return TrainingError(f"reward function {self._settings.function} {problem}")
