"""What fails on one rank fails on all: errors travel before any rank waits for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import torch.distributed as dist

from trimtab.errors import RankDisagreementError, TrainingError, TrimtabError

T = TypeVar("T")


def together(group: dist.ProcessGroup, what: str, work: Callable[[], T], *, blame_no_rank: bool = False) -> T:
    """Do this rank's part of something without collectives; then all ranks go on, or all raise.

    Args:
        group: gloo group of all ranks; this is a collective of it.
        what: named in errors, e.g. "step 3, rollout".
        work: this rank's part. Running out of memory is an error like any other.
        blame_no_rank: where all ranks failed alike, raise what was raised as it is.

    Raises:
        TrainingError: some rank's part failed; names rank and reason.
        TrimtabError: all ranks' parts failed alike, under ``blame_no_rank``.
    """
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    texts: list[str | None] = [None] * group.size()
    dist.all_gather_object(texts, None if error is None else _text(error), group=group)
    if blame_no_rank and isinstance(error, TrimtabError) and len(set(texts)) == 1:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise TrainingError(f"{what}, rank {rank}: {text}") from error
    return result  # type: ignore[return-value]


def agree_on_settings(group: dist.ProcessGroup, settings: Any) -> None:
    """Check that every rank was started with the same settings (a dataclass); a collective of ``group``.

    Raises:
        RankDisagreementError: two ranks differ; names the first setting that does, and both values.
    """
    everyone: list[dict[str, str]] = [{}] * group.size()
    dist.all_gather_object(everyone, dict(_flat(asdict(settings))), group=group)
    for rank, values in enumerate(everyone):
        for name in everyone[0].keys() | values.keys():
            one, other = everyone[0].get(name), values.get(name)
            if one != other:
                raise RankDisagreementError(
                    f"the settings differ: rank 0 has {name}={one}, rank {rank} has {name}={other}; start every rank "
                    "with the same settings"
                )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _text(error: Exception) -> str:
    if type(error).__module__.startswith("trimtab."):
        return str(error)
    remedy = ""
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        remedy = "; lower rollout.prompts_at_once or rollout.max_reply_tokens, or start more ranks"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}{remedy}"
