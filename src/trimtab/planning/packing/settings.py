"""Settings of the packer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trimtab.errors import SettingsError
from trimtab.schema.setting_checks import check_least

PackMethod = Literal["best", "isf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """How samples are packed and packs dealt to steps.

    Attributes:
        method: "best": a portfolio in pools, packs matched over ranks; "isf": as OmniBal published it, packs in random
            order.
        pool: samples packed together ("best"): more need fewer packs, fewer keep the order more random.
        window: steps whose packs are exchanged to make those of one step alike ("best"): more are more even, fewer
            keep the order more random. 1: random order.
        isf_rounds: rounds of ISF (T in the paper).
        isf_slack: a pack is good within this many units of the last capped load (Q_t - Q'_t in the paper, tokens).
    """

    method: PackMethod = "best"
    pool: int = 2048
    window: int = 64
    isf_rounds: int = 50
    isf_slack: int = 128

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: a value is unknown or out of range.
        """
        if self.method not in get_args(PackMethod):
            raise SettingsError(f"method={self.method!r} is unknown; choose one of {', '.join(get_args(PackMethod))}")
        for name, least in (("pool", 2), ("window", 1), ("isf_rounds", 1), ("isf_slack", 0)):
            check_least(name, getattr(self, name), least)
