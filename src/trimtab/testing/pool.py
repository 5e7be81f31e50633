"""A pool of rank processes over gloo, started once and shared by many runs."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Literal, Self, TypeVar, TypeVarTuple, overload

import torch.distributed as dist

from trimtab.errors import SettingsError
from trimtab.testing.messages import Task
from trimtab.testing.outcomes import results_or_errors, results_or_raise
from trimtab.testing.process import RankProcess
from trimtab.testing.watch import Watch

T = TypeVar("T")
Args = TypeVarTuple("Args")

DEFAULT_PRELOAD = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch._dynamo",
    "transformers.models.qwen2_vl.modeling_qwen2_vl",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "trimtab.testing.worker",
)
"""Imported once, before ranks are forked; what is not installed is passed over."""


class RankPool:
    """Rank processes that stay up between runs; it grows to the largest world asked for.

    Each `run` gives its ranks a fresh world of exactly ``world_size``: a default gloo process group over loopback,
    passed to the function, on which sub-groups, device meshes and FSDP2 can be built. It is destroyed after the run.
    Processes use one thread for torch, and are replaced when they die. One run at a time.

    Ranks are forked from Python's fork server, which imports ``preload`` when the first pool of the process starts.

    Args:
        preload: modules to import once for all ranks.

    Example:
        with RankPool() as pool:
            losses = pool.run(2, train_two_steps, settings)  # def train_two_steps(group, settings): ...
    """

    def __init__(self, *, preload: Sequence[str] = DEFAULT_PRELOAD) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        with _environment(OMP_NUM_THREADS="1"):
            ensure_running()
        self._directory = tempfile.TemporaryDirectory(prefix="trimtab-ranks-", ignore_cleanup_errors=True)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._indices = itertools.count()
        self._worlds = itertools.count()
        self._processes: list[RankProcess] = []
        atexit.register(self.close)  # multiprocessing joins its children at exit, so they must be told to end first

    @overload
    def run(
        self,
        world_size: int,
        fn: Callable[[dist.ProcessGroup, *Args], T],
        *args: *Args,
        timeout_s: float = ...,
        seed: int = ...,
        delays: Mapping[int, float] | None = ...,
        kills: Mapping[int, float] | None = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[T]: ...

    @overload
    def run(
        self,
        world_size: int,
        fn: Callable[[dist.ProcessGroup, *Args], T],
        *args: *Args,
        timeout_s: float = ...,
        seed: int = ...,
        delays: Mapping[int, float] | None = ...,
        kills: Mapping[int, float] | None = ...,
        return_exceptions: Literal[True],
    ) -> list[T | Exception]: ...

    def run(
        self,
        world_size: int,
        fn: Callable[[dist.ProcessGroup, *Args], T],
        *args: *Args,
        timeout_s: float = 60.0,
        seed: int = 0,
        delays: Mapping[int, float] | None = None,
        kills: Mapping[int, float] | None = None,
        return_exceptions: bool = False,
    ) -> list[T] | list[T | Exception]:
        """Call ``fn(group, *args)`` on ``world_size`` ranks and return the results in rank order.

        Args:
            world_size: ranks of this run.
            fn: a function of a module (pickled by name); what it returns is pickled by value.
            *args: the same for every rank.
            timeout_s: ranks that have not answered by then are killed, and named with their stacks.
            seed: of torch, numpy and random, the same on every rank.
            delays: rank -> seconds to sleep before ``fn``, once the world is made.
            kills: rank -> seconds after which its process is killed.
            return_exceptions: put exceptions in the ranks' places instead of raising, and let every rank use the whole
                time limit even when another has failed.

        Raises:
            SettingsError: ``fn`` or ``args`` cannot be pickled, or a rank is outside the world.
            RankLostError: a rank died, or the time was up.
            Exception: the earliest exception any rank raised, with that rank's traceback as a note.
        """
        delays, kills = delays or {}, kills or {}
        _check(world_size, delays, kills)
        call = _pickled_call(fn, args)
        processes = self._ready(world_size)
        world = f"world-{next(self._worlds)}"
        tasks = [
            Task(
                rank=rank,
                world_size=world_size,
                call=call,
                sys_path=tuple(sys.path),
                store_port=self._store.port,
                world=world,
                seed=seed,
                delay_s=delays.get(rank, 0.0),
                timeout_s=timeout_s,
            )
            for rank in range(world_size)
        ]
        watch = Watch(processes, timeout_s=timeout_s, kills=kills, wait_for_all=return_exceptions)
        try:
            for process, task in zip(processes, tasks, strict=True):
                process.send(task)
            outcomes = watch.outcomes()
        except BaseException:  # interrupted: what the ranks are doing is of no use to the next run
            for process in processes:
                process.kill()
            raise
        return results_or_errors(outcomes) if return_exceptions else results_or_raise(outcomes)

    def close(self) -> None:
        """End the processes; nothing happens on a second call."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.connection.close()
        for process in self._processes:
            process.close()
        self._processes.clear()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ready(self, world_size: int) -> list[RankProcess]:
        """The first ``world_size`` processes, started or replaced where needed."""
        self._processes = [process for process in self._processes if process.is_alive()]
        while len(self._processes) < world_size:
            self._processes.append(RankProcess(self._context, Path(self._directory.name), next(self._indices)))
        return self._processes[:world_size]


def _check(world_size: int, delays: Mapping[int, float], kills: Mapping[int, float]) -> None:
    if world_size < 1:
        raise SettingsError(f"world_size={world_size} must be at least 1")
    for name, ranks in (("delays", delays), ("kills", kills)):
        for rank in ranks:
            if not 0 <= rank < world_size:
                raise SettingsError(f"{name} names rank {rank}, but the world has ranks 0 to {world_size - 1}")


def _pickled_call(fn: Callable[..., object], args: tuple[object, ...]) -> bytes:
    try:
        return pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SettingsError(
            f"{fn!r} and its arguments are sent to other processes, but cannot be pickled ({error}); "
            "use a function defined at the top of a module and plain arguments"
        ) from error


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for a process that is about to start."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
