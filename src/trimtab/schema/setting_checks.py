"""The check that most settings share."""

from __future__ import annotations

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
