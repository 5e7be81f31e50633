"""The process a reward function runs in: a function that hangs or crashes takes nothing else with it.

Run as ``python -m trimtab.training.grpo.reward_worker FILE FUNCTION BATCH``; see ``rewards`` for the other end. The
file's ``state_dict()`` and ``load_state_dict(state)``, where it has them, keep its state across checkpoints.
"""

from __future__ import annotations

import importlib.util
import inspect
import numbers
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import ModuleType
from typing import IO, Any

from trimtab.loader.pipe_messages import read_message, write_message
from trimtab.training.grpo.reward_call import RewardCall


def main(arguments: list[str]) -> None:
    """Serve calls until standard input closes."""
    path, name, batch = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, results = own_pipes()
    try:
        module = load_module(path)
        function = getattr(module, name)
    except Exception as error:
        write_message(results, f"cannot be loaded: {last_line(error)}")
        return
    write_message(results, None)
    while True:
        try:
            call: RewardCall = read_message(calls)
        except EOFError:
            return
        for answer in answers(module, function, batch == "batch", call):
            try:
                write_message(results, answer)
            except Exception as error:  # nothing was written: what cannot be pickled fails before
                write_message(results, ("error", f"returned what cannot leave its process: {last_line(error)}"))


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes to the trainer, which from then on neither the function nor a process it starts reads or writes."""
    calls, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return calls, results


def load_module(path: str) -> ModuleType:
    """Import a Python file by its path.

    Raises:
        ImportError: it is no Python file.
    """
    spec = importlib.util.spec_from_file_location("reward", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(module: ModuleType, function: Callable[[Any], Any], batch: bool, call: RewardCall) -> Iterator[Any]:
    """The answers to one call: ("value", …) or ("error", text); a single function answers each input."""
    try:
        if call.kind == "save":
            yield "value", module.state_dict() if hasattr(module, "state_dict") else None
        elif call.kind == "load":
            module.load_state_dict(call.state)
            yield "value", None
        elif batch:
            yield _checked(_rewards(function(list(call.inputs))))
        else:
            for item in call.inputs:
                yield _checked(plain(function(item)))
    except Exception as error:
        yield "error", f"raised {last_line(error)}"


def _rewards(values: Any) -> Any:
    """A batch's rewards as a list; those a generator yields too."""
    values = plain(values)
    if inspect.isgenerator(values) or isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return values


def plain(value: Any) -> Any:
    """Numbers and lists of numbers; anything with ``tolist`` (numpy, torch) is turned into them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    exact = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool | int | float)
    return float(value) if exact else value


def _checked(value: Any) -> tuple[str, Any]:
    """The answer a value makes: what no pipe can carry, or would never be a number, is told by its type."""
    if inspect.iscoroutine(value):
        value.close()
        return "error", "is asynchronous, and was not awaited; give a plain function"
    if value is None or isinstance(value, bool | int | float | str | list):
        return "value", value
    wanted = "a reward must be a number, a batch's a list of them,"
    return "error", f"returned a value of type {type(value).__name__}; {wanted}"


def last_line(error: Exception) -> str:
    """The error and the line of the user's file it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


if __name__ == "__main__":
    main(sys.argv[1:])
