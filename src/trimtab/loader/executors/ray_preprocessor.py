"""The decoding actor: one process of a Ray cluster, killable, its results in its node's object store."""

from __future__ import annotations

import os
from typing import Any

from trimtab.loader.executors.decode_task import DecodeTask, Patches
from trimtab.loader.executors.decode_worker import DECODE_NICENESS, decode


class Preprocessor:
    """Decodes one task at a time; cuts slices beside it."""

    def __init__(self) -> None:
        os.nice(DECODE_NICENESS)

    def place(self) -> tuple[str, int]:
        """Id of the node it runs on, and its process id there."""
        import ray

        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    def decode(self, task: DecodeTask) -> tuple[str | None, Patches | None]:
        """What is wrong with a task, or None; and its patches. Each is an object of its own."""
        outcome = decode(task)
        return (outcome, None) if isinstance(outcome, str) else (None, outcome)

    def cut(self, patches: Any, first: int, last: int) -> Patches:
        """Rows ``first:last`` of a run, so that no other travels."""
        rows: Patches = patches[first:last]
        return rows
