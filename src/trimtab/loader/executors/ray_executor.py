"""One rank's door to decoding on a Ray cluster.

Answers and data arrive by callbacks, in whatever order they are ready; what a dead process or node took with it is
asked for again.
"""

from __future__ import annotations

import itertools
import queue
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trimtab.errors import LoaderError, MediaError
from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.protocol import DecodedMedia, MediaLease, Transport, new_answer, released_early
from trimtab.loader.executors.ray_cluster import NAMESPACE
from trimtab.loader.executors.ray_dispatcher import Dispatcher, RayAnswer

_ATTEMPTS = 20
_PAUSE_S = 0.5


@dataclass(eq=False)
class _Open:
    """A request under way; each attempt has its own lease."""

    request: MediaRequest
    answer: Future[DecodedMedia] = field(default_factory=new_answer)
    attempts: int = 0
    lease: tuple[str, int] | None = None
    decoded: bool = False
    is_hurried: bool = False
    is_released: bool = False


class RayExecutor:
    """Patches come from the object store: mapped where they lie on this node, fetched in one hop where not."""

    def __init__(self, dispatcher: Any, *, sharers: Iterable[int], on_close: Callable[[], None]) -> None:
        """Ask ``dispatcher`` (an actor handle) for media.

        Args:
            dispatcher: from ``start_dispatcher`` or ``find_dispatcher``.
            sharers: ranks that use it.
            on_close: undoes what opening did.
        """
        self.sharers = tuple(sharers)
        self._dispatcher, self._on_close = dispatcher, on_close
        self._client, self._numbers = uuid.uuid4().hex, itertools.count()
        self._node = ray.get_runtime_context().get_node_id()
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: set[_Open] = set()
        self._closing, self._closed = threading.Lock(), False
        self._requests = self._moved_bytes = 0
        self._thread = threading.Thread(target=self._handle_events, name="ray-media", daemon=True)
        self._thread.start()

    def request(self, request: MediaRequest) -> MediaLease:
        """Ask for media; does not block."""
        opened = _Open(request)
        with self._closing:
            if self._closed:
                self._finish(opened, _ended())
            else:
                self._open.add(opened)
                self._events.put(lambda: self._begin(opened))

        def release() -> None:
            self._events.put(lambda: self._release(opened))

        hurry = partial(self._events.put, lambda: self._hurry(opened))
        return MediaLease(request, opened.answer, release=release, hurry=hurry, abandon=release)

    def transport(self) -> Transport:
        """What arrived at this rank so far."""
        return Transport(self._requests, self._moved_bytes)

    def close(self) -> None:
        """Leave; open requests fail, and so does whatever is asked later."""
        with self._closing:
            was_closed, self._closed = self._closed, True
        if was_closed:
            return
        self._events.put(None)
        self._thread.join(timeout=10)
        for opened in list(self._open):
            self._finish(opened, _ended())
        self._on_close()

    def _handle_events(self) -> None:
        while (event := self._events.get()) is not None:
            event()

    def _begin(self, opened: _Open) -> None:
        if opened.answer.done():
            return
        opened.attempts += 1
        opened.lease = (self._client, next(self._numbers))
        asked = self._dispatcher.want.remote(opened.lease, opened.request, self._node, opened.is_hurried)
        self._then(asked, opened, self._located)

    def _then(self, reference: Any, opened: _Open, proceed: Callable[[_Open, Any], None]) -> None:
        """Go on with the value of an object once it is there, on this executor's thread."""

        def arrived(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                self._events.put(lambda: proceed(opened, future.result()))
            else:
                self._events.put(lambda: self._retry(opened, error))

        reference.future().add_done_callback(arrived)

    def _located(self, opened: _Open, answer: RayAnswer) -> None:
        if answer.problem is not None:
            self._finish(opened, (LoaderError if answer.is_fatal else MediaError)(answer.problem))
            return
        opened.decoded = opened.decoded or answer.decoded
        self._then(answer.reference[0], opened, self._arrived)

    def _arrived(self, opened: _Open, patches: Any) -> None:
        self._requests += 1
        self._moved_bytes += patches.nbytes
        self._finish(opened, DecodedMedia(patches, opened.decoded))

    def _retry(self, opened: _Open, error: BaseException) -> None:
        if opened.answer.done():
            return
        source = opened.request.task.visual.source
        if not isinstance(error, RayError) or opened.attempts >= _ATTEMPTS:
            self._finish(
                opened, LoaderError(f"{source}: Ray failed {opened.attempts} times ({error}); see `ray status`")
            )
            return
        self._dispatcher.forget.remote(opened.lease)
        timer = threading.Timer(_PAUSE_S, lambda: self._events.put(lambda: self._begin(opened)))
        timer.daemon = True
        timer.start()

    def _release(self, opened: _Open) -> None:
        if not opened.is_released:
            opened.is_released = True
            if opened.lease is not None:
                self._dispatcher.release.remote(opened.lease, opened.answer.done())
            self._finish(opened, released_early())

    def _hurry(self, opened: _Open) -> None:
        opened.is_hurried = True
        if opened.lease is not None and not opened.answer.done():
            self._dispatcher.hurry.remote(opened.lease)

    def _finish(self, opened: _Open, outcome: DecodedMedia | Exception) -> None:
        self._open.discard(opened)
        if opened.answer.done():
            return
        if isinstance(outcome, Exception):
            opened.answer.set_exception(outcome)
        else:
            opened.answer.set_result(outcome)


def _ended() -> LoaderError:
    return LoaderError("loading on Ray was ended before the request was answered")


def start_dispatcher(*, workers: int, budget_bytes: int, item_timeout_s: float) -> tuple[Any, str]:
    """Start the actors of a run, which end with this process. Returns the dispatcher and the name it is found by."""
    name = f"dispatcher-{uuid.uuid4().hex}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(Dispatcher).options(
        name=name, num_cpus=0, max_restarts=-1, max_concurrency=1 << 16, scheduling_strategy=here
    )
    return actor.remote(workers, budget_bytes=budget_bytes, item_timeout_s=item_timeout_s), name


def find_dispatcher(name: str) -> Any:
    """The dispatcher another rank started.

    Raises:
        LoaderError: there is none of that name.
    """
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise LoaderError(
            f"rank 0's decoding on Ray is not to be found ({error}); give all ranks one cluster"
        ) from error
