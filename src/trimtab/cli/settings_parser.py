"""Frozen settings dataclasses from YAML files and ``name=value`` arguments, through jsonargparse."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from trimtab.cli.setting_errors import told
from trimtab.cli.settings_file import words_of_file
from trimtab.errors import SettingsError

Settings = TypeVar("Settings")

_ASSIGNMENT = re.compile(r"^(?:--)?(?P<name>[A-Za-z_][\w.]*)=(?P<value>.*)$", re.DOTALL)
_SWITCH = re.compile(r"^--(?P<name>[\w.]+)$")
_CLOCK = re.compile(r"^[-+]?\d+(:\d+)+(\.\d*)?$")
_CONFIG = "config"


def parse_settings(kind: type[Settings], arguments: Sequence[str], *, command: str) -> Settings:
    """Settings from ``--config FILE.yaml`` and ``name=value`` or ``--name=value`` arguments; later ones win.

    Nested settings are written with dots (``balance.mode=off``); a switch alone (``--resume``) means true. Where the
    nested settings name a ``SHORT_FORM``, a plain value means that field (``packing=best``: ``packing.method=best``).
    A single value stands for a list of one (``data=train.jsonl``).

    Args:
        kind: a frozen dataclass whose docstring describes its fields.
        arguments: what follows the command.
        command: named in the usage text.

    Raises:
        SettingsError: a field is unknown or its value of the wrong kind, or a file cannot be read.
    """
    values = _parsed(kind, arguments, command, instantiate=True).as_dict()
    values.pop(_CONFIG, None)
    return kind(**values)


def check_kinds(kind: type, arguments: Sequence[str], *, command: str) -> None:
    """Refuse what is no setting or no value of its kind; whether the settings go together is left open.

    Args:
        kind: a frozen dataclass whose docstring describes its fields.
        arguments: as for ``parse_settings``.
        command: named in the usage text.

    Raises:
        SettingsError: a field is unknown or its value of the wrong kind, or a file cannot be read.
    """
    _parsed(kind, arguments, command, instantiate=False)


def _parsed(kind: type, arguments: Sequence[str], command: str, *, instantiate: bool) -> Namespace:
    """What the arguments say, with nested settings as dataclasses, which check themselves, or plain."""
    types = dict(_fields(kind))
    words = [_written_out(word, types) for word in _words(arguments, types)]
    _check_no_clock(words, types)
    parser = _parser(kind, command)
    try:
        values = parser.parse_args(words)
        return parser.instantiate(values) if instantiate else values
    except (ArgumentError, TypeError, ValueError) as error:
        raise SettingsError(told(str(error), types, words)) from error


def _check_no_clock(words: Sequence[str], types: dict[str, Any]) -> None:
    """Refuse numbers with colons, which YAML 1.1 takes as sixtieths: 1:5 for 65."""
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        kind = types.get(name)
        if _CLOCK.match(value) and {int, float} & {kind, *get_args(kind)}:
            raise SettingsError(told(f'Parser key "{name}": with colons', types, [word]))


def _parser(kind: type, command: str) -> ArgumentParser:
    parser = ArgumentParser(
        prog=command,
        exit_on_error=False,
        allow_abbrev=False,  # balance.mod=off must not pass for balance.mode=off
        description=(kind.__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings; arguments behind it win")
    parser.add_class_arguments(kind, as_group=False)
    return parser


def _fields(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and type of every setting, nested ones too."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        of_field = hints[field.name]
        yield f"{prefix}{field.name}", of_field
        if dataclasses.is_dataclass(of_field) and isinstance(of_field, type):
            yield from _fields(of_field, f"{prefix}{field.name}.")


def _words(arguments: Sequence[str], types: dict[str, Any]) -> Iterator[str]:
    """``--name=value`` words, files read in their place."""
    rest = iter(range(len(arguments)))
    for index in rest:
        word, following = arguments[index], arguments[index + 1 : index + 2]
        assignment, switch = _ASSIGNMENT.match(word), _SWITCH.match(word)
        if switch and switch["name"] == _CONFIG and following:
            yield from words_of_file(following[0])
            next(rest)
        elif assignment and assignment["name"] == _CONFIG:
            yield from words_of_file(assignment["value"])
        elif assignment:
            yield f"--{assignment['name']}={assignment['value']}"
        elif switch and types.get(switch["name"]) is bool and following[:1] not in (["true"], ["false"]):
            yield f"{word}=true"
        else:
            yield word


def _written_out(word: str, types: dict[str, Any]) -> str:
    """Short forms and single values as what they stand for."""
    assignment = _ASSIGNMENT.match(word)
    if not assignment or assignment["name"] not in types:
        return word
    name, value = assignment["name"], assignment["value"]
    short = getattr(types[name], "SHORT_FORM", None)
    if short is not None and not value.startswith("{"):
        return f"--{name}.{short}={value}"
    if get_origin(types[name]) is tuple and value and not value.startswith("["):
        return f"--{name}=[{value}]"
    return word
