"""Connects a rank to Ray: a cluster by its address, or one started within this process."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import ray

from trimtab.errors import LoaderError

NAMESPACE = "trimtab"

_raylet: Any = importlib.import_module("ray._raylet")  # compiled: it has no types

_SLACK_BYTES = 256 << 20
"""Of the object store of an embedded Ray, beside twice the budget: slices on their way to ranks, and Ray's own."""

_START_PAUSES_S = (2.0, 10.0)
"""Before the second and the third attempt to start Ray, which fails where the machine is busy."""


@dataclass(frozen=True)
class EmbeddedRay:
    """How the run's other ranks reach the Ray that rank 0 started.

    Attributes:
        address: of its control store.
        token: without it Ray answers nobody; None where the user had started Ray, whose own setup then holds.
    """

    address: str
    token: str | None = field(repr=False)


def start_embedded(*, workers: int, budget_bytes: int) -> EmbeddedRay:
    """Start Ray on this machine, for those who hold its token; it ends with this process.

    Ray listens on all interfaces whatever address it is given, so it asks for a token: a random one, which stays in the
    environment of the run's own processes. Ray by itself would keep one in the user's home.

    Raises:
        LoaderError: it does not start.
    """
    if ray.is_initialized():
        return EmbeddedRay(_address(), None)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)  # Ray keeps a process to its first token
    _use_token(token)
    options = {
        "address": "local",
        "num_cpus": workers,
        "num_gpus": 0,
        "include_dashboard": False,
        "object_store_memory": 2 * budget_bytes + _SLACK_BYTES,
    }
    for pause_s in _START_PAUSES_S:
        try:
            _init(**options)
        except LoaderError:
            ray.shutdown()
            time.sleep(pause_s)
        else:
            return EmbeddedRay(_address(), token)
    _init(**options)
    return EmbeddedRay(_address(), token)


def connect(address: str, *, token: str | None = None) -> bool:
    """Join a running cluster; returns whether this call did, so that ``ray.shutdown`` may undo it.

    Args:
        address: of its control store.
        token: of an ``EmbeddedRay``; None leaves authentication as the environment and the cluster have it.

    Raises:
        LoaderError: it cannot be reached.
    """
    if ray.is_initialized():
        return False
    if token is not None:
        _use_token(token)
    _init(address=address)
    return True


def _use_token(token: str) -> None:
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", token
    _raylet.Config.initialize("")  # Ray read the mode when it was imported


def _address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def _init(**options: object) -> None:
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises bare exceptions where a part of it does not start
        where = "on this machine" if options["address"] == "local" else options["address"]
        raise LoaderError(
            f"Ray {where}: {error}; check loader.ray_address and `ray status`, or set loader.executor=local"
        ) from error
