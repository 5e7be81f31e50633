"""Settings that are on or off, in the words that commands are printed with."""

from __future__ import annotations

from typing import Any

from trimtab.simulate.scenario import Scenario

_WORDS = {"on": "true", "yes": "true", "off": "false", "no": "false", "true": "true", "false": "false"}


def as_commands_say(name: str, value: str) -> str:
    """The value of a setting as written, but for a switch always "true" or "false"."""
    return _WORDS.get(value.lower(), value) if _is_switch(name) else value


def _is_switch(name: str) -> bool:
    default: Any = Scenario()
    for part in name.split("."):
        default = getattr(default, part, None)
    return isinstance(default, bool)
