"""The actor that knows where decoded media lies on a Ray cluster, and sends decoding to its preprocessors.

It is the MetaStore of the run: it holds references, never pixels. Requests wait here, not in the preprocessors, so each
goes to whichever is free; on the asking rank's node if one is, else to the one whose node holds the fewest bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.meta_store import StoredRun
from trimtab.loader.executors.ray_preprocessor import Preprocessor
from trimtab.loader.executors.scheduler import MAX_ATTEMPTS, DecodeScheduler, least_loaded

_RESTART_S = 120.0
_RETRY_S = 0.2


@dataclass(frozen=True, eq=False)
class RayAnswer:
    """Where a request's patches lie.

    Attributes:
        problem: why there are none, or None.
        is_fatal: the file is not at fault.
        reference: one object reference, within a tuple so that Ray does not fetch it on the way.
        decoded: see ``DecodedMedia``.
    """

    problem: str | None = None
    is_fatal: bool = False
    reference: tuple[Any, ...] = ()
    decoded: bool = False


_RELEASED = RayAnswer("the request was released before it was answered", is_fatal=True)


class Dispatcher:
    """Runs on rank 0's node; all methods are coroutines of one loop, so nothing here needs a lock."""

    def __init__(self, workers: int, *, budget_bytes: int, item_timeout_s: float) -> None:
        """Start preprocessors; see ``NodePool`` for the arguments."""
        self._timeout_s = item_timeout_s
        self._scheduler: DecodeScheduler[Any] = DecodeScheduler(budget_bytes=budget_bytes, max_runs=1 << 30)
        actor = ray.remote(Preprocessor).options(
            num_cpus=1, max_restarts=-1, max_task_retries=0, max_concurrency=2, scheduling_strategy="SPREAD"
        )
        self._preprocessors = [actor.remote() for _ in range(workers)]
        self._places: dict[int, tuple[str, int]] = {}  # of preprocessors that are up, by number
        self._busy: set[int] = set()
        self._given_up: set[int] = set()
        self._answers: dict[Hashable, asyncio.Future[RayAnswer]] = {}
        self._early: dict[Hashable, set[str]] = {}  # Ray may deliver what was sent after a request before it
        self._asking_nodes: dict[StoredRun[Any], str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._decodes: Counter[str] = Counter()
        self._started = False

    async def want(self, lease: Hashable, request: MediaRequest, node: str, hurried: bool) -> RayAnswer:
        """Answer once the request's patches are decoded, wherever they are."""
        if not self._started:
            self._started = True
            for number in range(len(self._preprocessors)):
                self._spawn(self._await_start(number))
        early = self._early.pop(lease, set())
        if "release" in early:
            return _RELEASED
        run, is_new = self._scheduler.want(lease, request)
        if hurried or "hurry" in early:
            self._scheduler.hurry(lease)
        if run.state != "ready":
            self._asking_nodes.setdefault(run, node)
            self._answers[lease] = asyncio.get_running_loop().create_future()
            self._assign()
            answer = await self._answers[lease]
            del self._answers[lease]
            if answer.problem is not None:
                return answer
        return RayAnswer(reference=(self._part(run, request),), decoded=is_new)

    async def release(self, lease: Hashable, answered: bool) -> None:
        """A request is no longer wanted; ``answered`` tells that its answer had arrived."""
        if not answered and not self._scheduler.knows(lease):
            self._early.setdefault(lease, set()).add("release")
            return
        self._scheduler.release(lease)
        self._answer(lease, _RELEASED)
        self._assign()

    async def hurry(self, lease: Hashable) -> None:
        """Somebody waits for a request's answer."""
        if not self._scheduler.knows(lease):
            self._early.setdefault(lease, set()).add("hurry")
            return
        self._scheduler.hurry(lease)
        self._assign()

    async def forget(self, lease: Hashable) -> None:
        """The object a request was answered with cannot be had: it will be decoded again when asked for."""
        self._scheduler.forget(lease)
        self._assign()

    async def decodes(self) -> dict[str, int]:
        """How often each source was decoded."""
        return dict(self._decodes)

    async def preprocessors(self) -> list[tuple[str, int]]:
        """Node and process id of each preprocessor that is up."""
        return list(self._places.values())

    def _part(self, run: StoredRun[Any], request: MediaRequest) -> Any:
        assert run.place is not None
        reference, number = run.place
        first, last = request.rows_in(run.task)
        if (first, last) == (0, run.task.shape[0]):
            return reference
        return self._preprocessors[number].cut.remote(reference, first, last)

    def _assign(self) -> None:
        while idle := {number: 0.0 for number in self._places if number not in self._busy}:
            chosen = self._scheduler.next_run()
            if chosen is None:
                return
            run, _ = chosen
            node = self._asking_nodes.pop(run, "")
            near = {number: work for number, work in idle.items() if self._places[number][0] == node}
            held = {number: self._held_bytes(self._places[number][0]) for number in idle}
            number = least_loaded(near or idle, held)
            run.holder = self._places[number][0]
            self._busy.add(number)
            self._spawn(self._decode(number, run))

    async def _decode(self, number: int, run: StoredRun[Any]) -> None:
        actor = self._preprocessors[number]
        problem, patches = actor.decode.options(num_returns=2).remote(run.task)
        try:
            reason = await asyncio.wait_for(asyncio.wrap_future(problem.future()), self._timeout_s)
        except TimeoutError:
            ray.kill(actor, no_restart=False)
            self._fail(
                run,
                f"{run.task.visual.source}: decoding took longer than loader.item_timeout_s={self._timeout_s:g} s and "
                "was stopped; remove or re-encode the file, or raise the limit",
            )
            await self._await_start(number)
        except RayError as error:
            if not self._scheduler.lost(run):
                self._fail(
                    run,
                    f"{run.task.visual.source}: its preprocessor died {MAX_ATTEMPTS} times over it ({error}); check "
                    "the file, and that the nodes have memory left",
                )
            await self._await_start(number)
        else:
            if reason is None:
                self._decodes[run.task.visual.source] += 1
                for lease, _ in self._scheduler.ready(run, (patches, number)):
                    self._answer(lease, RayAnswer())
            else:
                self._fail(run, reason)
            self._busy.discard(number)
        self._assign()

    async def _await_start(self, number: int) -> None:
        """Take a preprocessor into service once it runs; on a node that may not be the one it had."""
        self._places.pop(number, None)
        place = None
        deadline = asyncio.get_running_loop().time() + _RESTART_S
        while place is None and (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                running = asyncio.wrap_future(self._preprocessors[number].place.remote().future())
                place = await asyncio.wait_for(running, left)
            except (TimeoutError, RayError):
                await asyncio.sleep(_RETRY_S)
        if place is None:
            self._give_up(number)
            return
        self._places[number] = place
        self._busy.discard(number)
        self._assign()

    def _give_up(self, number: int) -> None:
        self._given_up.add(number)
        if len(self._given_up) < len(self._preprocessors):
            return
        problem = (
            f"no preprocessor could be started within {_RESTART_S:.0f} s; `ray status` tells whether the cluster has "
            f"{len(self._preprocessors)} CPUs free for them"
        )
        for run in self._scheduler.waiting():
            self._fail(run, problem, is_fatal=True)

    def _fail(self, run: StoredRun[Any], problem: str, *, is_fatal: bool = False) -> None:
        self._asking_nodes.pop(run, None)
        for lease, _ in self._scheduler.failed(run):
            self._answer(lease, RayAnswer(problem, is_fatal))

    def _answer(self, lease: Hashable, answer: RayAnswer) -> None:
        waiting = self._answers.get(lease)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _held_bytes(self, node: str) -> int:
        return sum(run.task.nbytes for run in self._scheduler.store.held_by(node))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
