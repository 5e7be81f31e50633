"""Wait for every rank of a run, but never longer than its time limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait

from trimtab.testing.messages import Answer, LeaveWorld, Lost
from trimtab.testing.process import RankProcess

GRACE_S = 1.0
"""After a rank failed, the others have this long to answer, then as long again with its sockets closed."""


class Watch:
    """The wait for the answers of one run.

    Once a rank has failed, the others are given `GRACE_S`; then the ranks that answered leave the world, which breaks
    the collectives the rest may be blocked in; then (unless ``wait_for_all``) the rest are killed.

    Args:
        processes: of the run, in rank order.
        timeout_s: the run's time limit.
        kills: rank -> seconds after which its process is killed.
        wait_for_all: use the whole time limit even after a rank has failed.
    """

    def __init__(
        self, processes: Sequence[RankProcess], *, timeout_s: float, kills: Mapping[int, float], wait_for_all: bool
    ) -> None:
        self._processes = processes
        self._timeout_s = timeout_s
        self._wait_for_all = wait_for_all
        self._start_s = time.monotonic()
        self._kills = {rank: self._start_s + after_s for rank, after_s in kills.items()}
        self._failed_s: float | None = None
        self._released = False
        self._outcomes: dict[int, Answer | Lost] = {}

    def outcomes(self) -> list[Answer | Lost]:
        """What became of each rank; every answered rank has been told to leave its world, every lost one is dead."""
        while waiting := self._waiting():
            now_s = time.monotonic()
            if now_s >= self._give_up_s():
                self._give_up(waiting)
            elif due := [rank for rank in waiting if self._kills.get(rank, now_s + 1.0) <= now_s]:
                self._kill(due[0])
            else:
                self._release_due(now_s)
                pause_s = max(0.0, self._next_event_s() - now_s)
                ready = wait([self._processes[rank].connection for rank in waiting], timeout=pause_s)
                for rank in waiting:
                    if self._processes[rank].connection in ready:
                        self._receive(rank)
        self._release()
        return [self._outcomes[rank] for rank in range(len(self._processes))]

    def _waiting(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if rank not in self._outcomes]

    def _give_up_s(self) -> float:
        limit_s = self._start_s + self._timeout_s
        if self._failed_s is None or self._wait_for_all:
            return limit_s
        return min(limit_s, self._failed_s + 2 * GRACE_S)

    def _next_event_s(self) -> float:
        events = [self._give_up_s(), *(at_s for rank, at_s in self._kills.items() if rank not in self._outcomes)]
        if self._failed_s is not None and not self._released:
            events.append(self._failed_s + GRACE_S)
        return min(events)

    def _kill(self, rank: int) -> None:
        self._outcomes[rank] = Lost(reason="died of SIGKILL, as asked by kills", stack="", ended_run=True)
        self._processes[rank].kill()
        self._fail()

    def _receive(self, rank: int) -> None:
        answer = self._processes[rank].receive()
        if answer is None:
            self._outcomes[rank] = Lost(reason=self._processes[rank].cause_of_death(), stack="", ended_run=True)
            self._processes[rank].kill()
            self._fail()
        else:
            self._outcomes[rank] = answer
            if answer.error is not None:
                self._fail()

    def _fail(self) -> None:
        if self._failed_s is None:
            self._failed_s = time.monotonic()

    def _release_due(self, now_s: float) -> None:
        if self._failed_s is not None and not self._released and now_s >= self._failed_s + GRACE_S:
            self._release()
            self._released = True

    def _release(self) -> None:
        for rank, outcome in self._outcomes.items():
            if isinstance(outcome, Answer):
                self._processes[rank].send(LeaveWorld())

    def _give_up(self, waiting: list[int]) -> None:
        for rank in waiting:
            self._processes[rank].ask_for_stack()
        waited_s = time.monotonic() - (self._failed_s or self._start_s)
        ended_run = self._failed_s is None or self._wait_for_all
        since = "" if self._failed_s is None else " after another rank failed"
        for rank in waiting:
            stack = self._processes[rank].stack()
            reason = f"did not answer within {waited_s:.1f} s{since}"
            self._outcomes[rank] = Lost(reason=reason, stack=stack, ended_run=ended_run)
        for rank in waiting:
            self._processes[rank].kill()
