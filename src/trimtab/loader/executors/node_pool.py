"""The decode processes and decoded media of one machine: no service, memory without names, each process killable.

A thread a process takes the next run from one scheduler, so whichever process is free works on what matters most. A
process that dies is replaced and its run tried again; a run that takes too long ends in a MediaError naming the file.
"""

from __future__ import annotations

import errno
import itertools
import resource
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from trimtab.errors import LoaderError, MediaError, TrimtabError
from trimtab.loader.executors.decode_process import DecodeProcess, DecodeProcessDiedError
from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.meta_store import StoredRun
from trimtab.loader.executors.protocol import DecodedMedia, MediaLease, Transport, new_answer, released_early
from trimtab.loader.executors.scheduler import MAX_ATTEMPTS, DecodeScheduler
from trimtab.loader.executors.shared_memory import SharedPatches
from trimtab.schema.setting_checks import check_least, check_positive, check_whole

Run = StoredRun[SharedPatches]

_POLL_S = 0.2
"""How often an idle decode thread looks for abandoned requests, which cannot wake it."""


@dataclass(frozen=True, eq=False)
class MemoryAnswer:
    """Where a request's patches lie.

    Attributes:
        memory: the run's memory; valid until the lease is released.
        first, last: the rows asked for.
        decoded: see ``DecodedMedia``.
    """

    memory: SharedPatches
    first: int
    last: int
    decoded: bool


Answer = Callable[[MemoryAnswer | TrimtabError], None]


class NodePool:
    """Serves ``request`` in this process; ``NodeServer`` serves the machine's other ranks from it."""

    def __init__(
        self, workers: int, *, budget_bytes: int, item_timeout_s: float, sharers: Iterable[int] = (0,)
    ) -> None:
        """Start decode processes; each ends with this process.

        Args:
            workers: decode processes.
            budget_bytes: decoded media kept; the earliest step's needs may exceed it.
            item_timeout_s: longest time one run may take to decode.
            sharers: ranks that use it.

        Raises:
            SettingsError: there would be no process, a negative budget or no time.
        """
        check_whole("workers", workers, 1)
        check_least("budget_bytes", budget_bytes, 0)
        check_positive("item_timeout_s", item_timeout_s)
        self.sharers = tuple(sharers)
        self._timeout_s = item_timeout_s
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._scheduler: DecodeScheduler[SharedPatches] = DecodeScheduler(
            budget_bytes=budget_bytes, max_runs=max(16, open_files // 2)
        )
        self._answers: dict[Hashable, tuple[Answer, bool]] = {}
        self._ids = itertools.count()
        self._abandoned: deque[int] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._requests = self._moved_bytes = 0
        self.decodes = 0
        """Runs decoded so far."""
        self._threads = [threading.Thread(target=self._serve, name=f"decode-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def peak_bytes(self) -> int:
        """Most bytes of decoded media held at once."""
        return self._scheduler.store.peak_bytes

    def request(self, request: MediaRequest) -> MediaLease:
        """Ask for media; does not block."""
        future = new_answer()

        def answer(found: MemoryAnswer | TrimtabError) -> None:
            if isinstance(found, TrimtabError):
                future.set_exception(found)
                return
            try:
                patches = found.memory.rows(found.first, found.last)
            except OSError as error:
                future.set_exception(_not_mapped(request, error))
                return
            self._requests += 1
            self._moved_bytes += patches.nbytes
            future.set_result(DecodedMedia(patches, found.decoded))

        lease = self.ask(request, answer)
        return MediaLease(
            request,
            future,
            release=lambda: self.release(lease),
            hurry=lambda: self.hurry(lease),
            abandon=lambda: self._abandoned.append(lease),
        )

    def ask(self, request: MediaRequest, answer: Answer) -> int:
        """Register a request; ``answer`` is called once, on any thread, with the pool locked. Returns its lease."""
        with self._changed:
            lease = next(self._ids)
            if self._closed:
                answer(_ended())
                return lease
            run, is_new = self._scheduler.want(lease, request)
            self._answers[lease] = answer, is_new
            if run.state == "ready":
                self._answer(run, [(lease, request)])
            self._changed.notify()
        return lease

    def release(self, lease: int) -> None:
        """A request's patches have been mapped and used, or are no longer wanted."""
        with self._changed:
            answer, _ = self._answers.pop(lease, (None, False))
            _close_memory(self._scheduler.release(lease))
            self._changed.notify_all()
            if answer is not None:
                answer(released_early())

    def hurry(self, lease: int) -> None:
        """Somebody waits for a request's answer."""
        with self._changed:
            self._scheduler.hurry(lease)
            self._changed.notify()

    def transport(self) -> Transport:
        """What requests of this process mapped so far."""
        return Transport(self._requests, self._moved_bytes)

    def close(self) -> None:
        """End the processes and give up what is held; open requests fail, patches already mapped stay."""
        with self._changed:
            self._closed = True
            answers, self._answers = self._answers, {}
            self._changed.notify_all()
            for answer, _ in answers.values():
                answer(_ended())
        for thread in self._threads:
            thread.join(timeout=10)
        with self._changed:
            _close_memory(self._scheduler.store.clear())

    def _serve(self) -> None:
        process: DecodeProcess | None = None
        try:
            while (run := self._next_run()) is not None:
                try:
                    if process is None or not process.alive:
                        process = DecodeProcess()
                    self._decode(process, run)
                except Exception as error:  # whatever it is, those who asked are told instead of waiting for ever
                    self._fail(run, _unexpected(run, error))
                    if process is not None:
                        process.kill()  # it may still be at it, and answer later
        finally:
            if process is not None:
                process.kill()

    def _next_run(self) -> Run | None:
        with self._changed:
            while not self._closed:
                while self._abandoned:
                    self.release(self._abandoned.popleft())
                chosen = self._scheduler.next_run()
                if chosen is not None:
                    run, evicted = chosen
                    _close_memory(evicted)
                    return run
                self._changed.wait(_POLL_S)
        return None

    def _decode(self, process: DecodeProcess, run: Run) -> None:
        memory, is_kept = None, False
        try:
            memory = SharedPatches.allocate(run.task.shape)
            process.decode(run.task, memory, timeout_s=self._timeout_s, cancelled=lambda: self._closed)
            with self._changed:
                self.decodes += 1
                answered, is_kept = self._scheduler.ready(run, memory), True
                self._answer(run, answered)
        except (MediaError, OSError) as error:
            self._fail(run, error if isinstance(error, MediaError) else _no_memory(run, error))
        except DecodeProcessDiedError:
            with self._changed:
                again = self._scheduler.lost(run)
                self._changed.notify()
            if not again:
                self._fail(run, _deadly(run))
        finally:
            if memory is not None and not is_kept:
                memory.close()

    def _answer(self, run: Run, requests: Iterable[tuple[Hashable, MediaRequest]]) -> None:
        assert run.place is not None
        for lease, request in requests:
            answer, decoded = self._answers.pop(lease, (None, False))
            if answer is not None:
                answer(MemoryAnswer(run.place, *request.rows_in(run.task), decoded))

    def _fail(self, run: Run, error: MediaError) -> None:
        with self._changed:
            for lease, _ in self._scheduler.failed(run):
                answer, _ = self._answers.pop(lease, (None, False))
                if answer is not None:
                    answer(error)
            _close_memory([run])
            self._changed.notify_all()


def _close_memory(runs: Iterable[Run]) -> None:
    for run in runs:
        if run.place is not None:
            run.place.close()


def _ended() -> LoaderError:
    return LoaderError("the decode processes of this machine were ended before the request was answered")


def _no_memory(run: Run, error: OSError) -> MediaError:
    remedy = "lower loader.cache_mb or loader.prefetch"
    if error.errno == errno.EMFILE:
        remedy = "raise the limit of open files (ulimit -n) above twice the visuals of a step"
    size = f"{run.task.nbytes / 2**20:.0f} MiB"
    return MediaError(f"{run.task.visual.source}: {size} of shared memory cannot be had ({error}); {remedy}")


def _not_mapped(request: MediaRequest, error: OSError) -> LoaderError:
    return LoaderError(
        f"{request.task.visual.source}: its patches cannot be mapped into this process ({error}); lower "
        "loader.cache_mb or loader.prefetch, or raise the machine's vm.max_map_count"
    )


def _unexpected(run: Run, error: Exception) -> MediaError:
    return MediaError(
        f"{run.task.visual.source}: decoding ended in {type(error).__name__}: {error}; where that is not the machine's "
        "fault, please report it"
    )


def _deadly(run: Run) -> MediaError:
    return MediaError(
        f"{run.task.visual.source}: the decode process died {MAX_ATTEMPTS} times over it; check the file, and that the "
        "machine has memory left"
    )
