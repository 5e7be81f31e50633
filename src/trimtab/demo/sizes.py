"""Heavy-tailed sizes: most small, few large, and always some of the largest."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


def heavy_tailed(
    count: int, median: float, spread: float, limits: tuple[float, float], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Evenly spaced quantiles of a log-normal distribution, cut to ``limits``, in random order.

    Quantiles instead of draws: every dataset then has the same tail, whatever its seed.

    Args:
        count: how many.
        median: of the uncut distribution.
        spread: standard deviation of the logarithm.
        limits: smallest and largest value.
        rng: decides the order only.

    Returns:
        [count].
    """
    normal = NormalDist(math.log(median), spread)
    sizes = np.exp([normal.inv_cdf((index + 0.5) / count) for index in range(count)])
    shuffled: NDArray[np.float64] = rng.permutation(np.clip(sizes, *limits))
    return shuffled
