"""Connects a rank to Ray: a cluster by its address, or one started within this process."""

from __future__ import annotations

import logging
import os

import ray

from trimtab.errors import LoaderError

NAMESPACE = "trimtab"

_SLACK_BYTES = 256 << 20
"""Of the object store of an embedded Ray, beside twice the budget: slices on their way to ranks, and Ray's own."""


def start_embedded(*, workers: int, budget_bytes: int) -> str:
    """Start Ray on this machine, reachable from it alone; it ends with this process. Returns its address.

    Raises:
        LoaderError: it does not start.
    """
    if not ray.is_initialized():
        # On loopback alone there is nobody to keep out, and Ray would write a token to the user's home.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _init(
            num_cpus=workers,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=2 * budget_bytes + _SLACK_BYTES,
            _node_ip_address="127.0.0.1",
        )
    return str(ray.get_runtime_context().gcs_address)


def connect(address: str, *, embedded: bool) -> bool:
    """Join a running cluster; returns whether this call did, so that ``ray.shutdown`` may undo it.

    Raises:
        LoaderError: it cannot be reached.
    """
    if ray.is_initialized():
        return False
    if embedded:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        _init(address=address, _node_ip_address="127.0.0.1")
    else:
        _init(address=address)
    return True


def _init(**options: object) -> None:
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises bare exceptions where a part of it does not start
        where = options.get("address", "on this machine")
        raise LoaderError(
            f"Ray {where}: {error}; check loader.ray_address and `ray status`, or set loader.executor=local"
        ) from error
