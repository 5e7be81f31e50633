"""How fast one device computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError

ShareByLength = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """Peak speed of one device and the share of it that kernels achieve.

    Attributes:
        flops: dense peak in the training dtype, FLOP/s.
        gemm_share: share of the peak that matrix products reach.
        vision_gemm_share: the same at the narrower shapes of a vision encoder.
        attention_share: (length, share) knots of causal attention, by sequence length.
        vision_attention_share: (length, share) knots of full attention, by tokens of a frame.
        window_attention_share: share that attention in small windows reaches.
    """

    flops: float
    gemm_share: float
    vision_gemm_share: float
    attention_share: ShareByLength
    vision_attention_share: ShareByLength
    window_attention_share: float

    def __post_init__(self) -> None:
        """Refuse speeds and shares that cannot be.

        Raises:
            SettingsError: a speed is not positive, a share lies outside (0, 1], or knots do not rise.
        """
        if not self.flops > 0:
            raise SettingsError(f"device: flops={self.flops} must be positive")
        tables = (self.attention_share, self.vision_attention_share)
        shares = [self.gemm_share, self.vision_gemm_share, self.window_attention_share]
        for table in tables:
            lengths = [length for length, _ in table]
            if not table or lengths != sorted(set(lengths)):
                raise SettingsError(f"device: lengths of a share table must be given and rise, found {lengths}")
            shares += [share for _, share in table]
        if not all(0 < share <= 1 for share in shares):
            raise SettingsError(f"device: achieved shares must lie above 0 and up to 1, found {shares}")


# One made-up speed for devices nobody described: plans depend on ratios of costs only.
NOMINAL_DEVICE = DeviceSpeed(
    flops=50e9,
    gemm_share=1.0,
    vision_gemm_share=1.0,
    attention_share=((1, 1.0),),
    vision_attention_share=((1, 1.0),),
    window_attention_share=1.0,
)


def share_at(table: ShareByLength, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Achieved share at each length: linear between knots, constant outside them."""
    return np.interp(lengths, *_knots(table))


@cache
def _knots(table: ShareByLength) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    lengths, shares = np.array(table, dtype=np.float64).T
    return lengths, shares
