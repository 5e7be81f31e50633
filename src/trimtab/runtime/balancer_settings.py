"""Settings of the batch balance and of the vision encoder balance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from trimtab.errors import SettingsError
from trimtab.planning.settings import PlanSettings
from trimtab.schema.setting_checks import check_whole

Mode = Literal["off", "observe", "on"]
EncoderStrategy = Literal["frames", "images", "loongforge"]
UnevenEnds = Literal["raise", "share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """How a host's micro-batches are balanced.

    Attributes:
        mode: "off" does nothing; "observe" moves nothing and reports what balance would gain; "on" moves samples.
        plan: where ranks meet, caps, host constraints and strategy. Its ``balance_vision`` is off: a visual is encoded
            where its sample is; turn it on where the encoder is balanced too.
        threshold: least share of the predicted step time a micro-batch must gain for its samples to move.
        length_ratio: no rank gets more than this many times the mean tokens of a micro-batch, where a plan within that
            exists; else the micro-batch is left alone. None: no limit. ``plan`` has hard caps.
        warmup_steps: steps that are only observed before samples move.
        every_rank_encodes: give a rank without visuals the smallest one, without loss, in a micro-batch where another
            has some: FSDP2 and ZeRO-3 need every rank in every layer.
        uneven_ends: what to do where some ranks' data ends earlier: "raise", or "share" what the others still have.
        pad_to_multiple_of: lengths of batches that were put together anew are padded to a multiple of it.
        verbose: print a line each step on the first rank.
        background: prepare the next step in a thread while this one runs. Needs a group used for nothing else.
    """

    mode: Mode = "on"
    plan: PlanSettings = field(default_factory=lambda: PlanSettings(balance_vision=False))
    threshold: float = 0.02
    length_ratio: float | None = None
    warmup_steps: int = 0
    every_rank_encodes: bool = True
    uneven_ends: UnevenEnds = "raise"
    pad_to_multiple_of: int = 1
    verbose: bool = False
    background: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: a value is out of range.
        """
        _check_choice("mode", self.mode, get_args(Mode))
        _check_choice("uneven_ends", self.uneven_ends, get_args(UnevenEnds))
        _check_shared(self.threshold, self.length_ratio, self.warmup_steps)
        check_whole("pad_to_multiple_of", self.pad_to_multiple_of, 1)
        if not isinstance(self.plan, PlanSettings):
            raise SettingsError(f"plan={self.plan!r} must be PlanSettings(...)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderBalanceSettings:
    """How a vision encoder's work is spread.

    Attributes:
        mode: "off", "observe" or "on".
        strategy: "frames" cuts videos between frames; "images" moves visuals whole; "loongforge" is the published one.
        threshold: least share of the slowest rank's encoding time to be gained for pixels to move.
        warmup_steps: calls that are only observed before pixels move.
        verbose: print a line each call on the first rank.
    """

    mode: Mode = "on"
    strategy: EncoderStrategy = "frames"
    threshold: float = 0.02
    warmup_steps: int = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: a value is out of range.
        """
        _check_choice("mode", self.mode, get_args(Mode))
        _check_choice("strategy", self.strategy, get_args(EncoderStrategy))
        _check_shared(self.threshold, None, self.warmup_steps)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")


def _check_shared(threshold: float, length_ratio: float | None, warmup_steps: int) -> None:
    if not isinstance(threshold, int | float) or not 0 <= threshold < 1:
        raise SettingsError(f"threshold={threshold!r} must lie in [0, 1)")
    if length_ratio is not None and (not isinstance(length_ratio, int | float) or not length_ratio >= 1):
        raise SettingsError(f"length_ratio={length_ratio!r} must be at least 1, or None for no limit")
    check_whole("warmup_steps", warmup_steps, 0)
