"""Debug mode: records the collectives a rank issues, and finds two ranks that issue different ones.

It watches torch's dispatcher, so collectives of FSDP, DDP and the host's own code are seen as well, in forward,
backward and recompute. Off unless entered; every collective then costs one more small one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import RankDisagreementError
from trimtab.planning.collectives import first_difference

_UNEVEN = ("alltoall", "gather_", "scatter_", "broadcast_", "send", "recv")


class CollectiveTrace(TorchDispatchMode):
    """Records collectives between ``with`` and its end, and compares them with the other ranks'.

    Args:
        control: gloo group of the ranks whose collectives must be alike, used for nothing else.
        before_launch: compare each collective before it is launched, so that ranks that would wait for ever raise
            instead. Only for collectives of groups as large as ``control``; False: compare at the end only.
    """

    def __init__(self, control: dist.ProcessGroup, *, before_launch: bool = True) -> None:
        super().__init__()
        self.issued: list[str] = []
        self._control = control
        self._before_launch = before_launch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``TorchDispatchMode``."""
        if getattr(func, "namespace", "") == "c10d":
            size = _group_size(args)
            self.issued.append(_signature(func, args, size))
            if self._before_launch and size == self._control.size():
                self._compare(self.issued[-1:])
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        """Leave, and compare what was issued unless an exception is passing.

        Raises:
            RankDisagreementError: ranks issued different collectives; names the first.
        """
        super().__exit__(kind, value, traceback)
        if kind is None:
            self._compare(self.issued, end=True)

    def _compare(self, recent: list[str], *, end: bool = False) -> None:
        ranks = self._control.size()
        digest = hash_of(["end" if end else "collective", *recent])
        digests = torch.empty(ranks, dtype=torch.int64)
        dist.all_gather_single(digests, torch.tensor([digest]), group=self._control)
        if bool((digests == digest).all()) and len(set(digests.tolist())) == 1:
            return
        traces: list[list[str]] = [[] for _ in range(ranks)]
        dist.all_gather_object(traces, self.issued, group=self._control)
        raise RankDisagreementError(
            f"ranks issue different collectives: {first_difference(traces)}; every rank must run the same layers in "
            "the same order, with a padding sample where it has none"
        )


def hash_of(names: list[str]) -> int:
    """A digest of texts as a signed 64-bit integer, equal in every process."""
    return int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest(), "big", signed=True)


def _signature(func: Any, args: tuple[Any, ...], size: int) -> str:
    """Operation, dtype and group size; the number of values where ranks must give equally many."""
    name = func.name().removeprefix("c10d::")
    tensors = list(_tensors(args))
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    uneven = name.startswith(_UNEVEN)
    values = "" if uneven or not tensors else f" of {tensors[-1].numel()} values"
    return f"{name}{values} ({', '.join(kinds)}, {size} ranks)"


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _group_size(args: tuple[Any, ...]) -> int:
    unbox: Callable[[Any], dist.ProcessGroup] = dist.ProcessGroup.unbox
    for value in args:
        if isinstance(value, torch.ScriptObject):
            try:
                return int(unbox(value).size())
            except (RuntimeError, TypeError):  # a reduction operator, not a group
                continue
    return 0
