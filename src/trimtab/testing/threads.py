"""Ranks as threads of this process, each with a gloo group of its own."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from trimtab.testing.outcomes import RankLostError

T = TypeVar("T")

GRACE_S = 1.0
"""Once a rank has failed, the others have this long to end, then as long again with its sockets closed."""


def run_threads(world_size: int, fn: Callable[[dist.ProcessGroup], T], *, timeout_s: float = 10.0) -> list[T]:
    """Call ``fn(group)`` on ``world_size`` threads and return the results in rank order.

    ``fn`` may be a closure. It must ask the group itself for its place (``group.rank()``, ``group.size()``): there is
    no default process group, so ``dist.get_rank(group)``, device meshes and FSDP do not work. Threads share torch's
    default generator: draw from a ``torch.Generator`` of your own. A thread cannot be killed; a hung one stays behind.

    Args:
        world_size: ranks.
        fn: what each rank does.
        timeout_s: limit of the whole run.

    Raises:
        RankLostError: a rank did not end within ``timeout_s``.
        Exception: the earliest exception any rank raised, with its rank as a note.
    """
    store = dist.HashStore()
    ranks = [_RankThread(rank, world_size, fn, store, timeout_s) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    _wait(ranks, timeout_s)
    failed = sorted((rank for rank in ranks if rank.error is not None), key=lambda rank: rank.ended_s)
    if failed and failed[0].error is not None:
        raise failed[0].error
    lost = tuple(rank.rank for rank in ranks if rank.is_alive())
    if lost:
        raise _lost_error(ranks, lost, timeout_s)
    return [rank.results[0] for rank in ranks]


class _RankThread(threading.Thread, Generic[T]):
    """One rank. A daemon, so that a hung one does not keep the interpreter alive."""

    def __init__(
        self, rank: int, world_size: int, fn: Callable[[dist.ProcessGroup], T], store: dist.Store, timeout_s: float
    ) -> None:
        super().__init__(name=f"rank-{rank}", daemon=True)
        self.rank = rank
        self.error: BaseException | None = None
        self.ended_s = float("inf")
        self.results: list[T] = []
        self._make_group = lambda: _gloo_group(store, rank, world_size, timeout_s)
        self._group: dist.ProcessGroup | None = None  # held until all have ended: others may still read from it
        self._fn = fn
        self._world_size = world_size

    def run(self) -> None:
        try:
            self._group = self._make_group()
            self.results.append(self._fn(self._group))
        except BaseException as error:  # raised in the caller's thread
            error.add_note(f"on rank {self.rank} of {self._world_size}")
            self.ended_s = time.monotonic()
            self.error = error

    def close_sockets(self) -> None:
        """Drop the group of a failed rank, which breaks the collectives others may be blocked in."""
        if self.error is not None:
            traceback.clear_frames(self.error.__traceback__)
            self._group = None

    def stack(self) -> str:
        """Where the thread stands now."""
        frame = sys._current_frames().get(self.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""


def _wait(ranks: list[_RankThread[T]], timeout_s: float) -> None:
    """Until all have ended, the time is up, or two grace periods after a failure."""
    give_up_s = time.monotonic() + timeout_s
    close_s = float("inf")
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < give_up_s:
        time.sleep(0.005)
        if close_s == float("inf") and any(rank.error is not None for rank in ranks):
            close_s = time.monotonic() + GRACE_S
            give_up_s = min(give_up_s, close_s + GRACE_S)
        if time.monotonic() >= close_s:
            for rank in ranks:
                rank.close_sockets()


def _lost_error(ranks: list[_RankThread[T]], lost: tuple[int, ...], timeout_s: float) -> RankLostError:
    names = ", ".join(f"rank {rank}" for rank in lost)
    error = RankLostError(f"of {len(ranks)} ranks, {names} did not answer within {timeout_s:.1f} s", lost)
    for rank in lost:
        error.add_note(f"rank {rank} stood at:\n{ranks[rank].stack()}")
    return error


def _gloo_group(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> dist.ProcessGroup:
    """A process group that only its holder knows: torch has no public way to have several in one process."""
    prefixed = dist.PrefixStore("threads", store)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing from the stubs
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout_s + GRACE_S)  # the run's limit comes first and names the ranks
    backend = dist.ProcessGroupGloo(prefixed, rank, world_size, options)
    group = dist.ProcessGroup(prefixed, rank, world_size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group
