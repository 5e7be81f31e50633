"""Frozen settings dataclasses from YAML files and ``name=value`` arguments, through jsonargparse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from jsonargparse import ArgumentError, ArgumentParser

from trimtab.errors import SettingsError

Settings = TypeVar("Settings")

_ASSIGNMENT = re.compile(r"^[A-Za-z_][\w.]*=")
_SWITCH = re.compile(r"^--(?P<name>[\w.]+)$")


def parse_settings(kind: type[Settings], arguments: Sequence[str], *, command: str) -> Settings:
    """Settings from ``--config FILE.yaml`` and ``name=value`` or ``--name=value`` arguments; later ones win.

    Nested settings are written with dots (``balance.mode=off``); a switch alone (``--resume``) means true. Where the
    nested settings name a ``SHORT_FORM``, a plain value means that field (``packing=best``: ``packing.method=best``).

    Args:
        kind: a frozen dataclass whose docstring describes its fields.
        arguments: what follows the command.
        command: named in the usage text.

    Raises:
        SettingsError: a field is unknown or its value of the wrong kind.
    """
    parser = ArgumentParser(prog=command, exit_on_error=False, description=(kind.__doc__ or "").splitlines()[0])
    parser.add_argument("--config", action="config", help="YAML file of settings")
    parser.add_class_arguments(kind, as_group=False)
    words = _with_dashes([_written_out(word, _short_forms(kind)) for word in arguments], switches=_boolean_fields(kind))
    try:
        parsed = parser.parse_args(words)
        values = parser.instantiate(parsed).as_dict()
    except ArgumentError as error:
        raise SettingsError(_one_line(str(error))) from error
    values.pop("config", None)
    return kind(**values)


def _written_out(word: str, short_forms: dict[str, str]) -> str:
    name, equals, value = word.removeprefix("--").partition("=")
    if not equals or name not in short_forms or value.startswith("{"):
        return word
    return f"{name}.{short_forms[name]}={value}"


def _short_forms(kind: type) -> dict[str, str]:
    """The field a plain value stands for, by name of the nested settings."""
    fields = getattr(kind, "__dataclass_fields__", {})
    short = {name: getattr(field.default_factory, "SHORT_FORM", None) for name, field in fields.items()}
    return {name: field for name, field in short.items() if field is not None}


def _with_dashes(arguments: Sequence[str], switches: set[str]) -> list[str]:
    words = []
    for index, word in enumerate(arguments):
        switch = _SWITCH.match(word)
        follows_value = index + 1 < len(arguments) and arguments[index + 1] in ("true", "false")
        if _ASSIGNMENT.match(word):
            word = f"--{word}"
        elif switch and switch["name"] in switches and not follows_value:
            word = f"{word}=true"
        words.append(word)
    return words


def _boolean_fields(kind: type) -> set[str]:
    fields = getattr(kind, "__dataclass_fields__", {})
    return {name for name, field in fields.items() if field.type in (bool, "bool")}


def _one_line(text: str) -> str:
    return " ".join(part.strip() for part in text.splitlines() if part.strip())
