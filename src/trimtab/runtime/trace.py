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
from trimtab.planning.collectives import first_group_difference
from trimtab.runtime.groups import NodeGroups

_UNEVEN = ("alltoall", "gather_", "scatter_", "broadcast_", "send", "recv")


class CollectiveTrace(TorchDispatchMode):
    """Records collectives between ``with`` and its end, and compares them with the other ranks'.

    Args:
        control: gloo group of the ranks whose collectives must be alike, used for nothing else.
        before_launch: compare each collective before it is launched, so that ranks that would wait for ever raise
            instead. Only for collectives of groups as large as ``control`` or of ``nodes``; False: compare at the end
            only.
        nodes: smaller groups of the same ranks, made for this alone (``node_groups`` with a short ``timeout_s``, after
            which a rank that waits in one says so). Collectives of smaller groups are compared within each group.
    """

    def __init__(
        self, control: dist.ProcessGroup, *, before_launch: bool = True, nodes: NodeGroups | None = None
    ) -> None:
        super().__init__()
        self.issued: list[str] = []
        self.groups: list[tuple[int, ...]] = []
        """Of each issued collective, the ranks; empty for one of all of them, or of one rank alone."""
        self._control = control
        self._before_launch = before_launch
        self._nodes = nodes.by_degree if nodes else {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``TorchDispatchMode``."""
        if getattr(func, "namespace", "") == "c10d":
            ranks = _group_ranks(args)
            size = len(ranks)
            self.issued.append(_signature(func, args, size))
            self.groups.append(ranks if 1 < size < self._control.size() else ())
            if self._before_launch and size == self._control.size():
                self._compare(self.issued[-1:])
            elif self._before_launch and size in self._nodes:
                self._compare_within(self._nodes[size])
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        """Leave, and compare what was issued unless an exception is passing.

        Raises:
            RankDisagreementError: ranks issued different collectives; names the first.
        """
        super().__exit__(kind, value, traceback)
        if kind is None:
            everyone = [name for name, ranks in zip(self.issued, self.groups, strict=True) if not ranks]
            self._compare(everyone, end=True)
            self._compare_groups()

    def _compare(self, recent: list[str], *, end: bool = False) -> None:
        ranks = self._control.size()
        digest = hash_of(["end" if end else "collective", *recent])
        digests = torch.empty(ranks, dtype=torch.int64)
        dist.all_gather_single(digests, torch.tensor([digest]), group=self._control)
        if bool((digests == digest).all()) and len(set(digests.tolist())) == 1:
            return
        raise RankDisagreementError(
            f"ranks issue different collectives: {self._difference()}; every rank must run the same layers in "
            "the same order, with a padding sample where it has none"
        )

    def _compare_within(self, node: dist.ProcessGroup) -> None:
        """Compare the last collective with the node's other ranks; a rank that waits too long tells everyone."""
        digest = hash_of(self.issued[-1:])
        digests = torch.empty(node.size(), dtype=torch.int64)
        try:
            dist.all_gather_single(digests, torch.tensor([digest]), group=node)
        except RuntimeError:  # the others are elsewhere
            digests.zero_()
        if not bool((digests == digest).all()):
            self._compare([f"rank {self._control.rank()} found a difference"])

    def _compare_groups(self) -> None:
        """Compare what was issued in groups of some ranks; all ranks take part."""
        differs = torch.tensor([float(self._difference() is not None)])
        dist.all_reduce(differs, group=self._control)
        if float(differs):
            raise RankDisagreementError(
                f"ranks issue different collectives: {self._difference()}; ranks that share a sequence must run its "
                "exchanges in one order"
            )

    def _difference(self) -> str | None:
        """In words, where this run's traces part; gathers them from all ranks."""
        own = list(zip(self.groups, self.issued, strict=True))
        traces: list[list[tuple[tuple[int, ...], str]]] = [[] for _ in range(self._control.size())]
        dist.all_gather_object(traces, own, group=self._control)
        return first_group_difference(traces)


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


def _group_ranks(args: tuple[Any, ...]) -> tuple[int, ...]:
    unbox: Callable[[Any], dist.ProcessGroup] = dist.ProcessGroup.unbox
    for value in args:
        if isinstance(value, torch.ScriptObject):
            try:
                return tuple(dist.get_process_group_ranks(unbox(value)))
            except (RuntimeError, TypeError):  # a reduction operator, not a group
                continue
    return ()
