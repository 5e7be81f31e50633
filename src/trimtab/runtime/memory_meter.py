"""How many bytes tensors take, now and at most: from a CUDA device's allocator, or from torch's dispatcher on a CPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class MemoryMeter(Protocol):
    """Counts bytes between ``with`` and its end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def live_bytes(self) -> int:
        """Held now."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Held at most since the meter was entered or the peak last forgotten."""
        ...

    def forget_peak(self) -> None:
        """Count the peak from now on."""
        ...


def memory_meter(device: torch.device, held: Iterable[Tensor] = (), ignored: Iterable[Tensor] = ()) -> MemoryMeter:
    """The meter of a device.

    Args:
        device: where tensors lie.
        held: tensors that exist already and are to be counted; a CUDA device's allocator knows all of them.
        ignored: tensors that exist already and are not to be counted, such as inputs.
    """
    return CudaMemory(device, ignored) if device.type == "cuda" else TensorMemory(held, ignored)


class TensorMemory(TorchDispatchMode):
    """Counts the storages of tensors that operators return while it is entered, each until it is freed.

    What an operator allocates and frees within itself is not seen.
    """

    def __init__(self, held: Iterable[Tensor] = (), ignored: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._live = self._peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet(tensor.untyped_storage() for tensor in ignored)
        for tensor in held:
            self._count(tensor)

    @property
    def live_bytes(self) -> int:
        """See ``MemoryMeter``."""
        return self._live

    @property
    def peak_bytes(self) -> int:
        """See ``MemoryMeter``."""
        return self._peak

    def forget_peak(self) -> None:
        """See ``MemoryMeter``."""
        self._peak = self._live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``TorchDispatchMode``."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        if tensor.device.type == "meta":
            return
        storage = local_tensor(tensor).untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        self._live += storage.nbytes()
        self._peak = max(self._peak, self._live)
        weakref.finalize(storage, self._free, storage.nbytes()).atexit = False

    def _free(self, nbytes: int) -> None:
        self._live -= nbytes


class CudaMemory:
    """The same from the caching allocator of a CUDA device; it sees everything torch allocates there."""

    def __init__(self, device: torch.device, ignored: Iterable[Tensor] = ()) -> None:
        self._device = device
        self._ignored = sum(tensor.untyped_storage().nbytes() for tensor in ignored if tensor.device == device)

    def __enter__(self) -> Self:
        self.forget_peak()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    @property
    def live_bytes(self) -> int:
        """See ``MemoryMeter``."""
        return torch.cuda.memory_allocated(self._device) - self._ignored

    @property
    def peak_bytes(self) -> int:
        """See ``MemoryMeter``."""
        return torch.cuda.max_memory_allocated(self._device) - self._ignored

    def forget_peak(self) -> None:
        """See ``MemoryMeter``."""
        torch.cuda.reset_peak_memory_stats(self._device)


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a micro-batch: of a dataclass such as ``PackedBatch``, or of a mapping."""
    values = [getattr(batch, field.name) for field in fields(batch)] if is_dataclass(batch) else tree_iter(batch)
    return [value for value in values if isinstance(value, Tensor)]


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lies on this rank, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
