"""Decoded media kept under a byte budget, least recently used first out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray


class DecodeCache:
    """Maps a key to patches; holds at most ``budget_bytes``."""

    def __init__(self, budget_bytes: int) -> None:
        """Start empty; a budget of 0 keeps nothing."""
        self._budget = budget_bytes
        self._bytes = 0
        self._items: OrderedDict[Hashable, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> NDArray[np.float32] | None:
        """The patches of ``key``, now the most recently used, or None."""
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key]

    def put(self, key: Hashable, patches: NDArray[np.float32]) -> None:
        """Keep patches, dropping the least recently used to stay within the budget; too large ones are not kept."""
        with self._lock:
            if patches.nbytes > self._budget or key in self._items:
                return
            self._items[key] = patches
            self._bytes += patches.nbytes
            while self._bytes > self._budget:
                _, dropped = self._items.popitem(last=False)
                self._bytes -= dropped.nbytes
