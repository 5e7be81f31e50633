"""Settings of the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.errors import SettingsError
from trimtab.schema.setting_checks import check_least


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """How samples reach the ranks.

    Attributes:
        mode: "shadow": every rank decodes what its plan gives it; "central": rank 0 decodes everything and ships
            tensors, as single-controller frameworks do.
        workers: decode processes for each rank ("central" gives rank 0 those of all ranks).
        prefetch: steps prepared ahead of the one that computes.
        cache_mb: decoded media each rank keeps, in MiB ("central": rank 0 keeps that of all ranks); 0 keeps none.
        on_bad_sample: "raise" ends the run; "skip" trains on with the sample's loss weight 0 and lists it.
        item_timeout_s: longest time one image or run of frames may take to decode.
    """

    mode: Literal["shadow", "central"] = "shadow"
    workers: int = 1
    prefetch: int = 2
    cache_mb: int = 256
    on_bad_sample: Literal["raise", "skip"] = "raise"
    item_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name, least in (("workers", 1), ("prefetch", 1), ("cache_mb", 0)):
            check_least(f"loader.{name}", getattr(self, name), least)
        if self.item_timeout_s <= 0:
            raise SettingsError(f"loader.item_timeout_s={self.item_timeout_s} must be positive")
