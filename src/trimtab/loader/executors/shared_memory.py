"""Memory that processes share by passing its descriptor; it has no name, so it is gone once no process holds it."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref

import numpy as np

from trimtab.loader.executors.decode_task import Patches


class SharedPatches:
    """Patches in shared memory (float32 [rows, patch_values])."""

    def __init__(self, descriptor: int, shape: tuple[int, int]) -> None:
        """Take over an open descriptor of memory that holds patches of ``shape``."""
        self.descriptor, self.shape = descriptor, shape

    @staticmethod
    def allocate(shape: tuple[int, int]) -> SharedPatches:
        """New memory, zeroed.

        Raises:
            OSError: there is none left.
        """
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("trimtab-patches", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as unnamed:
                descriptor = os.dup(unnamed.fileno())
        os.ftruncate(descriptor, max(1, _bytes(shape)))
        return SharedPatches(descriptor, shape)

    def write(self, patches: Patches) -> None:
        """Fill all rows."""
        if patches.size:
            with mmap.mmap(self.descriptor, _bytes(self.shape)) as mapping:
                np.frombuffer(mapping, dtype=np.float32).reshape(self.shape)[:] = patches

    def rows(self, start: int, stop: int) -> Patches:
        """Rows ``start:stop`` without copying: only they are mapped. They outlive ``close``."""
        values = self.shape[1]
        if start == stop:
            return np.zeros((0, values), dtype=np.float32)
        row_bytes = _bytes((1, values))
        first = start * row_bytes // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapping = _map(self.descriptor, first, stop * row_bytes - first)
        offset = start * row_bytes - first
        flat = np.frombuffer(
            memoryview(mapping).cast("B"), dtype=np.float32, count=(stop - start) * values, offset=offset
        )
        flat.flags.writeable = False
        return flat.reshape(stop - start, values)

    def close(self) -> None:
        """Give up the descriptor; mapped rows stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _map(descriptor: int, offset: int, length: int) -> ctypes.Array[ctypes.c_byte]:
    """Map memory for reading, until the result is no longer referred to.

    Python's own ``mmap`` keeps a descriptor open for each mapping, and a step may have thousands.

    Raises:
        OSError: it cannot be mapped.
    """
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = system.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mapping = (ctypes.c_byte * length).from_address(address)
    weakref.finalize(mapping, system.munmap, address, length).atexit = False
    return mapping


def _bytes(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1] * np.dtype(np.float32).itemsize
