"""The process a reward function runs in: a function that hangs or crashes takes nothing else with it.

Run as ``python -m trimtab.training.grpo.reward_worker FILE FUNCTION BATCH``; see ``rewards`` for the other end. The
file's ``state_dict()`` and ``load_state_dict(state)``, where it has them, keep its state across checkpoints.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from trimtab.loader.pipe_messages import read_message, write_message
from trimtab.training.grpo.reward_call import RewardCall


def main(arguments: list[str]) -> None:
    """Serve calls until standard input closes."""
    path, name, batch = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, results = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
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
            write_message(results, answer)


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
            yield "value", plain(function(list(call.inputs)))
        else:
            for item in call.inputs:
                yield "value", plain(function(item))
    except Exception as error:
        yield "error", last_line(error)


def plain(value: Any) -> Any:
    """Numbers and lists of numbers; anything with ``tolist`` (numpy, torch) is turned into them."""
    return value.tolist() if hasattr(value, "tolist") else value


def last_line(error: Exception) -> str:
    """The error and the line of the user's file it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


if __name__ == "__main__":
    main(sys.argv[1:])
