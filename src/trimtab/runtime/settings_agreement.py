"""Ranks compare their settings and are told which differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from trimtab.errors import RankDisagreementError

_SHOWN = 4
_PRINTING = frozenset({"verbose"})
"""Settings that change what is printed and nothing else; ranks may differ in them."""


def agree_on_settings(group: dist.ProcessGroup, what: str, settings: Mapping[str, Any]) -> None:
    """Check that every rank has the same settings; a collective of ``group``.

    Args:
        group: the ranks.
        what: whose settings, for the error.
        settings: values by name; mappings in it are compared entry by entry.

    Raises:
        RankDisagreementError: on every rank, with the same text: names the settings that differ and both values.
    """
    mine = dict(_flat(settings))
    found: list[dict[str, str]] = [{} for _ in range(group.size())]
    dist.all_gather_object(found, mine, group=group)
    for rank, other in enumerate(found):
        names = [name for name in sorted({*found[0], *other}) if found[0].get(name) != other.get(name)]
        if names:
            listed = ", ".join(
                f"{name} (rank 0: {found[0].get(name, 'none')}, rank {rank}: {other.get(name, 'none')})"
                for name in names[:_SHOWN]
            )
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise RankDisagreementError(f"{what} differ: {listed}{more}; give every rank the same settings and model")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if name in _PRINTING:
            continue
        if isinstance(value, Mapping):
            yield from _flat({str(key): each for key, each in value.items()}, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", repr(value)
