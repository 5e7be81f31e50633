"""Group-normalised advantages (GRPO, DeepSeekMath, arXiv:2402.03300, equation 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NO_DEVIATION = 1e-8
"""Groups that deviate less, relative to their largest reward, differ by rounding only."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Advantages:
    """What each reply did better than its group.

    Attributes:
        values: float64 [N].
        equal_groups: groups whose rewards are all equal: they teach nothing, and all their advantages are 0.
    """

    values: NDArray[np.float64]
    equal_groups: int


def group_advantages(rewards: NDArray[np.float64], replies: int, *, scale: bool = True) -> Advantages:
    """(reward - mean of the group) / standard deviation of the group.

    Args:
        rewards: float64 [N], ``replies`` consecutive ones a group.
        replies: replies of a group.
        scale: divide by the (population) standard deviation; false only subtracts the mean (Dr. GRPO,
            arXiv:2503.20783).
    """
    groups = rewards.reshape(-1, replies)
    centred = groups - groups.mean(axis=1, keepdims=True)
    deviation = groups.std(axis=1, keepdims=True)
    equal = deviation <= _NO_DEVIATION * np.maximum(np.abs(groups).max(axis=1, keepdims=True, initial=0.0), 1.0)
    divisor = np.where(equal, 1.0, deviation) if scale else np.ones_like(deviation)
    return Advantages(values=np.where(equal, 0.0, centred / divisor).reshape(-1), equal_groups=int(equal.sum()))
