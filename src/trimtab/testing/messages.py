"""What the pool and its rank processes say to each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Task:
    """One function to run on one rank, in a world of its own.

    Attributes:
        rank, world_size: the rank's place in the world of this run.
        call: pickled ``(fn, args)``; unpickled only once ``sys_path`` is in place.
        sys_path: where the caller finds modules.
        store_port: loopback port of the pool's TCPStore.
        world: key prefix in that store, new in every run.
        seed: for torch, numpy and random, the same on every rank.
        delay_s: sleep before ``fn``, after the world is made.
        timeout_s: time limit of the run.
    """

    rank: int
    world_size: int
    call: bytes
    sys_path: tuple[str, ...]
    store_port: int
    world: str
    seed: int
    delay_s: float
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class LeaveWorld:
    """Every rank has answered, or one failed: destroy the process groups of the last task."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a task on one rank.

    Attributes:
        value: pickled result; None where the task raised.
        error: pickled exception; None where it did not.
        traceback: of the exception, as text.
        at_s: monotonic clock of the machine when ``fn`` ended; orders the errors of a run.
    """

    value: bytes | None = None
    error: bytes | None = None
    traceback: str = ""
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A rank that gave no answer.

    Attributes:
        reason: "died of SIGKILL", "did not answer within 5 s".
        stack: where its threads stood when the pool gave up on it; empty if it was dead already.
        ended_run: whether this loss ended the run, rather than another rank's exception.
    """

    reason: str
    stack: str
    ended_run: bool
