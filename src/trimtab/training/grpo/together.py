"""What fails on one rank fails on all: errors travel before any rank waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from trimtab.errors import TrainingError

T = TypeVar("T")


def together(group: dist.ProcessGroup, what: str, work: Callable[[], T]) -> T:
    """Do this rank's part of something without collectives; then all ranks go on, or all raise.

    Args:
        group: gloo group of all ranks; this is a collective of it.
        what: named in errors, e.g. "step 3, rollout".
        work: this rank's part. Running out of memory is an error like any other.

    Raises:
        TrainingError: some rank's part failed; names rank and reason.
    """
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    texts: list[str | None] = [None] * group.size()
    dist.all_gather_object(texts, None if error is None else _text(error), group=group)
    for rank, text in enumerate(texts):
        if text is not None:
            raise TrainingError(f"{what}, rank {rank}: {text}") from error
    return result  # type: ignore[return-value]


def _text(error: Exception) -> str:
    if type(error).__module__.startswith("trimtab."):
        return str(error)
    remedy = ""
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        remedy = "; lower rollout.prompts_at_once or rollout.max_reply_tokens, or start more ranks"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}{remedy}"
