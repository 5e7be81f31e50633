"""An error on one rank is raised on every rank, with its own class and the rank's name."""

from __future__ import annotations

from typing import NoReturn

import torch.distributed as dist

from trimtab import errors


def raise_on_every_rank(group: dist.ProcessGroup, where: str, error: Exception | None) -> NoReturn:
    """Gather the ranks' errors and raise the first on all of them; a collective of ``group``.

    Args:
        group: the ranks.
        where: what was being done, e.g. "balance step 3".
        error: this rank's, or None.

    Raises:
        TrimtabError: always: of the first error's class where that is one of trimtab's, else ``LoaderError``.
    """
    mine = None if error is None else (type(error).__name__, str(error))
    found: list[tuple[str, str] | None] = [None] * group.size()
    dist.all_gather_object(found, mine, group=group)
    rank, (name, text) = next((rank, each) for rank, each in enumerate(found) if each is not None)
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.TrimtabError)):
        kind, text = errors.LoaderError, f"{name}: {text}"
    raise kind(f"{where}, rank {rank}: {text}") from error
