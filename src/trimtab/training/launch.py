"""Starts the ranks of a run on this machine, or joins those torchrun started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trimtab import errors
from trimtab.errors import TrainingError, TrimtabError
from trimtab.runtime.groups import Ranks, join

Train = Callable[[Any, Ranks], bool]

STOPPED = 75  # EX_TEMPFAIL: stopped by a signal, go on with --resume


def launch(train: Train, settings: Any) -> int:
    """Run ``train(settings, ranks)`` on every rank.

    Under torchrun this process is one of its ranks. Alone it starts ``settings.ranks`` (default: one a GPU, else 2).

    Returns:
        Exit code: 0, or 75 where a signal stopped the run and left a checkpoint.

    Raises:
        TrimtabError: what a rank raised.
    """
    if "RANK" in os.environ:
        return _run_rank(train, settings)
    ranks = settings.ranks or torch.cuda.device_count() or 2
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="trimtab",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        start_method="spawn",
        local_addr="localhost",
    )
    try:
        results = elastic_launch(config, _run_rank)(train, settings)
    except ChildFailedError as failure:
        raise _first_failure(failure) from None
    return max(results.values())


@record
def _run_rank(train: Train, settings: Any) -> int:
    if not torch.cuda.is_available():
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_ranks))
    ranks = join(timeout_s=settings.timeout_s)
    done = train(settings, ranks)
    dist.destroy_process_group()
    return 0 if done else STOPPED


def _first_failure(failure: ChildFailedError) -> TrimtabError:
    """The error of the rank that failed first: its own words where trimtab raised it, else with its traceback."""
    rank, cause = failure.get_first_failure()
    details = cause.error_file_data.get("message", {}) if isinstance(cause.error_file_data, dict) else {}
    message = details.get("message", "") if isinstance(details, dict) else str(details)
    kind, _, text = message.partition(": ")
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, TrimtabError):
        return known(text)
    trace = details.get("extraInfo", {}).get("py_callstack", "") if isinstance(details, dict) else ""
    print(trace or f"rank {rank} left no traceback", file=sys.stderr)
    return TrainingError(f"rank {cause.local_rank} died: {message or cause.message}; see the traceback above")
