"""One rank as a child process: runs the training function and tells its parent how it ended."""

from __future__ import annotations

import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tqdm import tqdm

from trimtab.errors import TrimtabError

RunRank = Callable[..., int]


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """How a rank ended.

    Attributes:
        code: its exit code where it ended well, else None.
        error: what it raised where that was one of trimtab's own errors.
        text: the last line of any other exception.
        trace: its traceback, for exceptions that are not trimtab's own.
        signal_number: what killed it, where it could not tell.
    """

    code: int | None = None
    error: TrimtabError | None = None
    text: str = ""
    trace: str = ""
    signal_number: int | None = None


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_rank(
    connection: Connection, rank: int, ranks: int, port: int, run: RunRank, arguments: tuple[Any, ...]
) -> None:
    """Entry point of the child: takes the environment torchrun would give it, runs, reports."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the trainer handles it: the parent passes signals on
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own lock is a semaphore of the system, which leaving at once would leak
    outcome = _run(run, arguments)
    connection.send(outcome)
    # a failed rank leaves at once: waiting for its peers in destructors would hold up the news
    os._exit(0 if outcome.code is not None else 1)


def _run(run: RunRank, arguments: tuple[Any, ...]) -> RankOutcome:
    try:
        return RankOutcome(code=run(*arguments))
    except TrimtabError as error:
        plain = type(error)(str(error))  # causes and tracebacks may not pickle
        return RankOutcome(error=plain)
    except BaseException as error:
        return RankOutcome(text=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _end_with_parent(connection: Connection) -> None:
    """The parent never writes: what wakes this thread is its end."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)
