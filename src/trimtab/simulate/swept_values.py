"""The values behind ``--sweep``, and how ranges and lists written otherwise are to be written."""

from __future__ import annotations

import re

from trimtab.errors import SettingsError

_RANGE = re.compile(r"(?P<first>\d+)(?::|\.{2,3}|-)(?P<last>\d+)((?::|\.{2,3})(?P<step>[1-9]\d*))?")
_BRACKETS = "[](){}"
_SHOWN = 8


def is_several(value: str) -> bool:
    """Whether a value is meant as several: a list, or a range such as 1:5."""
    return "," in value or _RANGE.fullmatch(value.strip(_BRACKETS)) is not None


def listed_values(name: str, values: str) -> list[str]:
    """Values of "1,2,4".

    Raises:
        SettingsError: they are written as a range or in brackets, or one is missing; says how to write them.
    """
    wanted = f"--sweep {name}={values}: write "
    plain = values.removeprefix("range").strip(_BRACKETS)
    if found := _RANGE.fullmatch(plain):
        numbers = range(int(found["first"]), int(found["last"]) + 1, int(found["step"] or 1))
        shown = [str(number) for number in numbers[:_SHOWN]]
        raise SettingsError(f"{wanted}every value, {name}={','.join(shown)}{',…' if len(numbers) > _SHOWN else ''}")
    if plain != values:
        raise SettingsError(f"{wanted}every value without brackets, {name}={'1,2,4' if 'range' in values else plain}")
    listed = [value.strip() for value in values.split(",")]
    if not name or "" in listed:
        raise SettingsError(f"{wanted}setting=value,value,...; such as max_degree=1,2,4,8")
    return listed
