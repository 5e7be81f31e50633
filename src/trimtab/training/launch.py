"""Starts the ranks of a run on this machine, or joins those torchrun started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from trimtab.errors import TrainingError
from trimtab.training.rank_process import RankOutcome, free_port, serve_rank

if TYPE_CHECKING:
    from trimtab.runtime.groups import Ranks

Train = Callable[[Any, "Ranks"], bool]

STOPPED = 75  # EX_TEMPFAIL: stopped by a signal, go on with --resume

_GRACE_S = 10.0
_PRELOAD = ("trimtab.training.sft", "torch._dynamo")  # AdamW imports dynamo in its first step


def launch(train: Train, settings: Any) -> int:
    """Run ``train(settings, ranks)`` on every rank.

    Under torchrun this process is one of its ranks. Alone it starts ``settings.ranks`` (default: one a GPU, else 2),
    passes SIGINT and SIGTERM on to them and waits until they have written their checkpoint; a second one kills them.

    Returns:
        Exit code: 0; 75 where a signal stopped the run and left a checkpoint; 143 where a SIGTERM ended the ranks: a
        second signal, or one before they listened.

    Raises:
        TrimtabError: what a rank raised; a TrainingError where it died otherwise, its traceback printed before.
        KeyboardInterrupt: a SIGINT ended them.
    """
    if "RANK" in os.environ:
        return run_rank(train, settings)
    context = multiprocessing.get_context("forkserver")  # imports once for all ranks, and never touches CUDA
    context.set_forkserver_preload(list(_PRELOAD))
    _start_fork_server()
    children = _Children()
    previous = {number: signal.signal(number, children.pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        children.start(context, settings.ranks or _default_ranks(), (train, settings))
        outcomes = children.outcomes()
    finally:
        children.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if children.killed_by is not None:
        return _killed_by(children.killed_by, "a second signal")
    unheard = any(outcome.signal_number == signal.SIGTERM for outcome in outcomes.values())
    if unheard and children.asked_by is not None:
        return _killed_by(children.asked_by, "a signal")
    return _exit_code(outcomes)


def _killed_by(number: int, which: str) -> int:
    print(f"stopped by {which}; --resume goes on from the last checkpoint, if there is one", file=sys.stderr)
    if number == signal.SIGTERM:
        return 128 + signal.SIGTERM
    raise KeyboardInterrupt


def run_rank(train: Train, settings: Any) -> int:
    """Join the other ranks, train, leave; returns the exit code."""
    import torch
    import torch.distributed as dist
    from transformers.utils import logging

    from trimtab.runtime.groups import join

    if not torch.cuda.is_available():
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_ranks))
    logging.disable_progress_bar()
    ranks = join(timeout_s=settings.timeout_s)
    done = train(settings, ranks)
    dist.destroy_process_group()
    return 0 if done else STOPPED


def _start_fork_server() -> None:
    """Start the process ranks are forked from; it ignores Ctrl-C while it imports, since this process answers that."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGINT, previous)


class _Children:
    """The rank processes of one run; signals may come before they are started, and while they are."""

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []

    def start(self, context: Any, ranks: int, arguments: tuple[Any, ...]) -> None:
        """Start them; where a signal came meanwhile, they are asked to stop."""
        port = free_port()
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_rank, args=(theirs, rank, ranks, port, run_rank, arguments))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
            if self._signals and process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)

    def pass_on(self, number: int, _: Any) -> None:
        """Ask the ranks to stop; kill them the second time."""
        self._signals.append(number)
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM if len(self._signals) == 1 else signal.SIGKILL)

    @property
    def asked_by(self) -> int | None:
        """The first signal, or None."""
        return self._signals[0] if self._signals else None

    @property
    def killed_by(self) -> int | None:
        """The second signal, which ended the ranks, or None."""
        return self._signals[1] if len(self._signals) > 1 else None

    def outcomes(self) -> dict[int, RankOutcome]:
        """How each rank ended, in order of time; once one failed the others have a few seconds to say why."""
        ended: dict[int, RankOutcome] = {}
        deadline = None
        while len(ended) < len(self._processes):
            waiting = [rank for rank in range(len(self._processes)) if rank not in ended]
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not wait([self._connections[rank] for rank in waiting], left):
                break
            for rank in waiting:
                if self._connections[rank].poll():
                    ended[rank] = self._receive(rank)
            if deadline is None and any(outcome.code is None for outcome in ended.values()):
                deadline = time.monotonic() + _GRACE_S
        return ended

    def kill(self) -> None:
        """End whatever still runs."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def _receive(self, rank: int) -> RankOutcome:
        try:
            outcome: RankOutcome = self._connections[rank].recv()
        except (EOFError, OSError):
            self._processes[rank].join(timeout=5)
            code = self._processes[rank].exitcode
            return RankOutcome(signal_number=-code if code is not None and code < 0 else 0)
        return outcome


def _exit_code(outcomes: dict[int, RankOutcome]) -> int:
    """The ranks' exit code, or the failure that explains the others.

    A killed rank explains its peers' broken connections, trimtab's own error comes next, then whatever came first.
    """
    failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.code is None}
    if not failed:
        return max(outcome.code or 0 for outcome in outcomes.values())
    rank, cause = min(failed.items(), key=lambda item: (item[1].signal_number is None, item[1].error is None))
    if cause.signal_number is not None:
        name = signal.Signals(cause.signal_number).name if cause.signal_number else "an unexpected exit"
        raise TrainingError(
            f"rank {rank} was ended by {name}; where nobody killed it the machine may be out of memory. "
            "--resume goes on from the last checkpoint"
        )
    if cause.error is not None:
        raise cause.error
    print(cause.trace, file=sys.stderr)
    raise TrainingError(f"rank {rank} died: {cause.text}; its traceback is above")


def _default_ranks() -> int:
    import torch

    return torch.cuda.device_count() or 2
