"""The checks that most settings share."""

from __future__ import annotations

import math
import numbers

from trimtab.errors import SettingsError


def check_least(name: str, value: float, least: float) -> None:
    """Refuse a setting below its least value, or one that is not a number.

    Args:
        name: as the user writes it, dots included.
        value: what was given.
        least: the smallest that is legal.

    Raises:
        SettingsError: names the setting, its value and the limit.
    """
    if not value >= least:
        raise SettingsError(f"{name}={value} must be at least {least}")


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse a setting that is no whole number, or below its least value.

    Raises:
        SettingsError: names the setting, its value and the limit.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SettingsError(f"{name}={value!r} must be a whole number")
    check_least(name, int(value), least)


def check_positive(name: str, value: float) -> None:
    """Refuse a setting that is not a finite number above 0.

    Raises:
        SettingsError: names the setting and its value.
    """
    if not 0 < value < math.inf:
        raise SettingsError(f"{name}={value} must be positive and finite")
