"""Which decoded media exists and where it lies, kept under a byte budget."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from trimtab.loader.executors.decode_task import DecodeTask

Place = TypeVar("Place")


@dataclass(eq=False, kw_only=True)
class StoredRun(Generic[Place]):
    """A decoded run of frames, or one that is to be decoded.

    Attributes:
        task: what it holds.
        step: earliest step that asked for it.
        leases: requests that need it; it stays while there is one.
        state: "waiting" to be decoded, "decoding" or "ready".
        place: where it lies once it is ready.
        holder: the process or node that decodes or holds it.
        attempts: times it was begun.
        hurried: somebody waits for it.
    """

    task: DecodeTask
    step: int
    leases: set[Hashable] = field(default_factory=set)
    state: Literal["waiting", "decoding", "ready"] = "waiting"
    place: Place | None = None
    holder: Hashable = None
    attempts: int = 0
    hurried: bool = False


class MetaStore(Generic[Place]):
    """Finds runs by what they hold; evicts the least recently used that no request needs."""

    def __init__(self, *, budget_bytes: int, max_runs: int) -> None:
        """Start empty.

        Args:
            budget_bytes: of runs that are ready or being decoded.
            max_runs: that are ready or being decoded, as each may cost a descriptor.
        """
        self._budget_bytes, self._max_runs = budget_bytes, max_runs
        self._runs: dict[Hashable, list[StoredRun[Place]]] = {}
        self._held: dict[StoredRun[Place], None] = {}  # in order of last use
        self.held_bytes = 0
        self.peak_bytes = 0

    def find(self, task: DecodeTask) -> StoredRun[Place] | None:
        """A run that covers the task, now the most recently used."""
        for run in self._runs.get(task.key, []):
            if run.task.covers(task):
                if run in self._held:
                    self._held[run] = self._held.pop(run)
                return run
        return None

    def add(self, run: StoredRun[Place]) -> None:
        """Make a waiting run known."""
        self._runs.setdefault(run.task.key, []).append(run)

    def hold(self, run: StoredRun[Place], *, beyond_budget: bool) -> list[StoredRun[Place]] | None:
        """Make room for a run that is about to be decoded.

        Args:
            run: a waiting run.
            beyond_budget: hold it even where what is needed leaves no room.

        Returns:
            Runs evicted for it, or None where there is no room.
        """
        evicted: list[StoredRun[Place]] = []
        free_bytes = self._budget_bytes - self.held_bytes
        free_runs = self._max_runs - len(self._held)
        for old in self._held:
            if free_bytes >= run.task.nbytes and free_runs > 0:
                break
            if not old.leases and old.state == "ready":
                evicted.append(old)
                free_bytes += old.task.nbytes
                free_runs += 1
        if (free_bytes < run.task.nbytes or free_runs <= 0) and not beyond_budget:
            return None
        for old in evicted:
            self.discard(old)
        self._held[run] = None
        self.held_bytes += run.task.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return evicted

    def let_go(self, run: StoredRun[Place]) -> None:
        """A run is no longer held: it waits again."""
        if run in self._held:
            del self._held[run]
            self.held_bytes -= run.task.nbytes

    def discard(self, run: StoredRun[Place]) -> None:
        """Forget a run."""
        self.let_go(run)
        siblings = self._runs.get(run.task.key, [])
        if run in siblings:
            siblings.remove(run)
        if not siblings:
            self._runs.pop(run.task.key, None)

    def trim(self) -> list[StoredRun[Place]]:
        """Evict down to the budget, as far as no request needs what is held; returns what was evicted."""
        evicted = []
        for run in list(self._held):
            if self.held_bytes <= self._budget_bytes:
                break
            if not run.leases and run.state == "ready":
                self.discard(run)
                evicted.append(run)
        return evicted

    def clear(self) -> list[StoredRun[Place]]:
        """Forget everything held; returns what was ready."""
        ready = [run for run in self._held if run.state == "ready"]
        for run in list(self._held):
            self.discard(run)
        return ready

    def held_by(self, holder: Hashable) -> list[StoredRun[Place]]:
        """Runs a process or node decodes or holds."""
        return [run for run in self._held if run.holder == holder]
