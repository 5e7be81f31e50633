"""Processor cores that decode: each takes the next visual in line as soon as it is free."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray


class DecodePool:
    """W workers with one queue. Keeps when each worker is free, so that batches follow each other without a gap."""

    def __init__(self, workers: int) -> None:
        """All workers are free at time 0."""
        self._free = [0.0] * workers

    def decode(self, may_start: float, seconds: NDArray[np.float64]) -> float:
        """Decode a batch in order, no item before ``may_start``.

        Args:
            may_start: seconds on the simulation's clock.
            seconds: float64 [V], time of each item on one worker.

        Returns:
            When the last item is done; ``may_start`` where there is none.
        """
        if len(seconds) == 0:
            return may_start
        if len(self._free) == 1:
            begin = max(may_start, self._free[0])
            self._free[0] = begin + float(seconds.sum())
            return self._free[0]
        done = may_start
        for length in seconds.tolist():
            begin = max(may_start, self._free[0])
            heapq.heapreplace(self._free, begin + length)
            done = max(done, begin + length)
        return done
