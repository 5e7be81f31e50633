"""Opens the executor a run's settings ask for, the same way on all its ranks."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch.distributed as dist

from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.executors.node_client import NodeClient
from trimtab.loader.executors.node_pool import NodePool
from trimtab.loader.executors.node_server import NodeServer
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks

_MIB = 1 << 20


def open_executor(settings: LoaderSettings, ranks: Ranks) -> MediaExecutor | None:
    """Decode processes for this rank; a collective of all ranks.

    Returns:
        The executor, or None on a rank that is shipped its packs (``loader.mode=central``).

    Raises:
        LoaderError: it could not be opened on some rank; raised on all.
        SettingsError: Ray is asked for but not installed.
    """
    if settings.executor == "ray":
        try:
            from trimtab.loader.executors.open_ray import open_ray_executor
        except ImportError as error:
            raise SettingsError(f"loader.executor=ray needs Ray ({error}); pip install 'trimtab[ray]'") from error
        return open_ray_executor(settings, ranks)
    if settings.mode == "central":
        return _pool(settings, range(ranks.size)) if ranks.is_first else None
    machines: list[str] = [""] * ranks.size
    dist.all_gather_object(machines, _machine(), group=ranks.control)
    sharers = [rank for rank in range(ranks.size) if machines[rank] == machines[ranks.rank]]
    server, problem = None, None
    if ranks.rank == sharers[0]:
        try:
            server = NodeServer(_pool(settings, sharers))
        except OSError as error:
            problem = f"its decode processes cannot be started ({error})"
    addresses: list[tuple[str | None, str | None]] = [(None, None)] * ranks.size
    dist.all_gather_object(addresses, (server.address if server else None, problem), group=ranks.control)
    client = None
    if server is None and addresses[sharers[0]][0] is not None:
        try:
            client = NodeClient(str(addresses[sharers[0]][0]), sharers=sharers)
        except LoaderError as error:
            problem = str(error)
    problems: list[str | None] = [None] * ranks.size
    dist.all_gather_object(problems, problem, group=ranks.control)
    if server:
        server.all_connected()
    _raise_shared(problems, server or client)
    return server or client


def _raise_shared(problems: list[str | None], opened: MediaExecutor | None) -> None:
    failed = next((rank for rank, problem in enumerate(problems) if problem is not None), None)
    if failed is not None:
        if opened:
            opened.close()
        raise LoaderError(f"rank {failed}: {problems[failed]}")


def _pool(settings: LoaderSettings, sharers: range | list[int]) -> NodePool:
    return NodePool(
        settings.workers * len(sharers),
        budget_bytes=settings.cache_mb * len(sharers) * _MIB,
        item_timeout_s=settings.item_timeout_s,
        sharers=sharers,
    )


def _machine() -> str:
    """Equal for ranks that can share memory and a folder: one boot of one machine, seen from one container."""
    boot, mounts = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/mnt")
    parts = [socket.gethostname(), boot.read_text().strip() if boot.is_file() else ""]
    return "/".join([*parts, os.readlink(mounts) if mounts.exists() else ""])
