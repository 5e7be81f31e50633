"""Which run is decoded next, and by whom: earlier steps first, then the longest, within the byte budget.

A pure state machine: executors own the threads or actors, and call it under their lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from trimtab.errors import LoaderError
from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.decode_time import predicted_decode_ms
from trimtab.loader.executors.meta_store import MetaStore, Place, StoredRun

MAX_ATTEMPTS = 3


class DecodeScheduler(Generic[Place]):
    """Shares, orders and re-dispatches the work of decode processes."""

    def __init__(self, *, budget_bytes: int, max_runs: int) -> None:
        """Start with nothing to do; see ``MetaStore`` for the limits."""
        self.store: MetaStore[Place] = MetaStore(budget_bytes=budget_bytes, max_runs=max_runs)
        self._waiting: list[StoredRun[Place]] = []
        self._leased: dict[Hashable, tuple[MediaRequest, StoredRun[Place]]] = {}

    def want(self, lease: Hashable, request: MediaRequest) -> tuple[StoredRun[Place], bool]:
        """Register a request; returns the run that will answer it, and whether it is to be decoded because of it."""
        run = self.store.find(request.task)
        is_new = run is None
        if run is None:
            run = StoredRun(task=request.task, step=request.step)
            self.store.add(run)
            self._waiting.append(run)
        run.step = min(run.step, request.step) if run.leases else request.step
        run.hurried = run.hurried and bool(run.leases)
        run.leases.add(lease)
        self._leased[lease] = request, run
        return run, is_new

    def hurry(self, lease: Hashable) -> None:
        """Somebody waits for a request."""
        if lease in self._leased:
            self._leased[lease][1].hurried = True

    def knows(self, lease: Hashable) -> bool:
        """Whether a request is registered and neither failed nor released."""
        return lease in self._leased

    def next_run(self) -> tuple[StoredRun[Place], list[StoredRun[Place]]] | None:
        """The run to decode now, marked so, and what was evicted for it; None where nothing waits or fits.

        What somebody waits for comes first. It, and what the earliest unfinished step needs, is decoded even beyond
        the budget, or the wait could never end; later steps wait until requests are released.
        """
        if not self._waiting:
            return None
        run = min(self._waiting, key=lambda run: (not run.hurried, run.step, -predicted_decode_ms(run.task)))
        earliest = min(request.step for request, _ in self._leased.values())
        evicted = self.store.hold(run, beyond_budget=run.hurried or run.step <= earliest)
        if evicted is None:
            return None
        self._waiting.remove(run)
        run.state, run.attempts = "decoding", run.attempts + 1
        return run, evicted

    def ready(self, run: StoredRun[Place], place: Place) -> list[tuple[Hashable, MediaRequest]]:
        """A run was decoded; returns the requests it answers."""
        run.state, run.place = "ready", place
        return self._answered(run)

    def failed(self, run: StoredRun[Place]) -> list[tuple[Hashable, MediaRequest]]:
        """A run cannot be decoded; returns the requests that fail with it. A later request tries it again."""
        waiting = self._answered(run)
        if run in self._waiting:
            self._waiting.remove(run)
        self.store.discard(run)
        for lease, _ in waiting:
            del self._leased[lease]
        run.leases.clear()
        return waiting

    def lost(self, run: StoredRun[Place]) -> bool:
        """The process that decoded a run is gone; returns whether it will be tried again.

        It is not where it was tried too often: then call ``failed``.
        """
        self.store.let_go(run)
        run.state, run.holder = "waiting", None
        if not run.leases:
            self.store.discard(run)
            return True
        if run.attempts >= MAX_ATTEMPTS:
            return False
        self._waiting.append(run)
        return True

    def forget(self, lease: Hashable) -> None:
        """What a request was answered with cannot be had: its run will be decoded anew for whoever asks next."""
        if lease in self._leased:
            _, run = self._leased.pop(lease)
            run.leases.discard(lease)
            if run.state == "ready":
                self.store.discard(run)

    def waiting(self) -> list[StoredRun[Place]]:
        """Runs not begun."""
        return list(self._waiting)

    def release(self, lease: Hashable) -> list[StoredRun[Place]]:
        """A request's answer has been used, or is no longer wanted; returns runs evicted now."""
        if lease not in self._leased:
            return []
        _, run = self._leased.pop(lease)
        run.leases.discard(lease)
        if not run.leases and run.state == "waiting":
            self._waiting.remove(run)
            self.store.discard(run)
        return self.store.trim()

    def _answered(self, run: StoredRun[Place]) -> list[tuple[Hashable, MediaRequest]]:
        return [(lease, self._leased[lease][0]) for lease in run.leases]


Process = TypeVar("Process", bound=Hashable)


def least_loaded(work_ms: Mapping[Process, float], held_bytes: Mapping[Process, int]) -> Process:
    """The process with the least predicted work, then the fewest bytes held; ties go to the first.

    Raises:
        LoaderError: there is no process.
    """
    if not work_ms:
        raise LoaderError("no decode process is left; see the errors above, or start the run again")
    return min(work_ms, key=lambda process: (work_ms[process], held_bytes.get(process, 0)))
