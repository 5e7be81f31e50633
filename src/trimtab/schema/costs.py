"""What the samples and visuals of a step cost, in whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Costs:
    """Predicted time of each sample and visual on one rank (N samples, V visuals).

    Integers, so that every rank computes the same plan to the last bit.

    Attributes:
        language_ns: int64 [N], language model on the whole sequence, forward and backward.
        vision_frame_ns: int64 [V], vision encoder on one temporal patch of the visual; a visual costs
            ``grid_t * vision_frame_ns`` since attention stays within a frame.
    """

    language_ns: NDArray[np.int64]
    vision_frame_ns: NDArray[np.int64]
