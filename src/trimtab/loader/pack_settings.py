"""Settings of training on packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trimtab.errors import SettingsError
from trimtab.planning.packing.settings import PackSettings
from trimtab.schema.setting_checks import check_least

_DEFAULTS = PackSettings()


@dataclass(frozen=True, kw_only=True)
class PackingSettings:
    """Whether and how samples are packed into micro-batches.

    Attributes:
        method: "off"; "best": packs as few and as alike over ranks as can be; "isf": as OmniBal published it.
        tokens: hard cap on a pack's language-model tokens, text and visual.
        patches: hard cap on a pack's vision patches, before merging. With neither cap both are chosen from the data.
        samples_per_pack: samples a pack holds on average, where caps are chosen.
        max_samples: hard cap on the samples of a pack; None: twice ``samples_per_pack`` where caps are chosen, else
            none. Without one a pack of tiny samples may hold a hundred, one of large samples a single one, and a step
            that averages over its own tokens weighs a sample by the company it has.
        window: steps within which packs are exchanged to make those of one step alike ("best").
        pool: samples packed together ("best").
        on_oversized: what to do with samples no pack can hold: "raise", or "skip" and list them.
    """

    SHORT_FORM: ClassVar[str] = "method"  # packing=best means packing.method=best

    method: Literal["off", "isf", "best"] = "off"
    tokens: int | None = None
    patches: int | None = None
    samples_per_pack: int = 4
    max_samples: int | None = None
    window: int = _DEFAULTS.window
    pool: int = _DEFAULTS.pool
    on_oversized: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range, or a word none of the known.
        """
        for name, known in (("method", ("off", "isf", "best")), ("on_oversized", ("raise", "skip"))):
            if getattr(self, name) not in known:
                raise SettingsError(f"packing.{name}={getattr(self, name)!r} is none of {', '.join(known)}")
        ones = ("tokens", "patches", "samples_per_pack", "max_samples", "window")
        for name, least in (*((name, 1) for name in ones), ("pool", 2)):
            value = getattr(self, name)
            if value is not None:
                check_least(f"packing.{name}", value, least)

    @property
    def packer(self) -> PackSettings:
        """Settings of the packer.

        Raises:
            SettingsError: packing is off.
        """
        if self.method == "off":
            raise SettingsError("packing.method=off packs nothing; choose best or isf")
        return PackSettings(method=self.method, window=self.window, pool=self.pool)
