"""Opens the Ray executor on all ranks of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import ray
import torch.distributed as dist

from trimtab.errors import LoaderError
from trimtab.loader.executors.ray_cluster import EmbeddedRay, connect, start_embedded
from trimtab.loader.executors.ray_executor import RayExecutor, find_dispatcher, start_dispatcher
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks

_MIB = 1 << 20


def open_ray_executor(settings: LoaderSettings, ranks: Ranks) -> RayExecutor | None:
    """Join the cluster of ``settings.ray_address``, or one that rank 0 starts; a collective of all ranks.

    Returns:
        The executor, or None on a rank that is shipped its packs.

    Raises:
        LoaderError: a rank cannot join; raised on all.
    """
    executor, problem = None, None
    meeting: tuple[EmbeddedRay | None, str] = (None, "")
    if ranks.is_first:
        try:
            executor, meeting = _start(settings, ranks.size)
        except LoaderError as error:
            problem = str(error)
    meetings: list[Any] = [None] * ranks.size
    dist.all_gather_object(meetings, (problem, *meeting), group=ranks.control)
    problem, embedded, name = meetings[0]
    if problem is None and not ranks.is_first and settings.mode == "shadow":
        try:
            executor = _join(embedded or EmbeddedRay(str(settings.ray_address), None), name, ranks=ranks.size)
        except LoaderError as error:
            problem = str(error)
    problems: list[str | None] = [None] * ranks.size
    dist.all_gather_object(problems, problem, group=ranks.control)
    for rank, found in enumerate(problems):
        if found is not None:
            if executor:
                executor.close()
            raise LoaderError(f"rank {rank}: {found}")
    return executor


def _start(settings: LoaderSettings, ranks: int) -> tuple[RayExecutor, tuple[EmbeddedRay | None, str]]:
    workers, budget_bytes = settings.workers * ranks, settings.cache_mb * ranks * _MIB
    embedded = None
    if settings.ray_address is None:
        embedded = start_embedded(workers=workers, budget_bytes=budget_bytes)
    else:
        connect(settings.ray_address)
    dispatcher, name = start_dispatcher(
        workers=workers, budget_bytes=budget_bytes, item_timeout_s=settings.item_timeout_s
    )
    # Ray itself stays until this process ends: other ranks may not have left it yet.
    executor = RayExecutor(dispatcher, sharers=range(ranks), on_close=partial(ray.kill, dispatcher))
    return executor, (embedded, name)


def _join(cluster: EmbeddedRay, name: str, *, ranks: int) -> RayExecutor:
    joined = connect(cluster.address, token=cluster.token)
    try:
        return RayExecutor(find_dispatcher(name), sharers=range(ranks), on_close=ray.shutdown if joined else _stay)
    except LoaderError:
        if joined:
            ray.shutdown()
        raise


def _stay() -> None:
    """Ray was there before this executor; it stays."""
