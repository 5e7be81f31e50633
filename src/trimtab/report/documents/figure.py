"""A figure that every output of a command has, or a sentence on what lacks it."""

from __future__ import annotations

from typing import Any

from trimtab.schema.json_kind import json_kind


def figure(row: Any, name: str, whose: str) -> float:
    """The number ``row`` has under ``name``.

    Args:
        row: an object of the output.
        name: of the figure.
        whose: what the object is, such as "strategy 'all'".

    Raises:
        ValueError: there is none, or it is no number.
    """
    if not isinstance(row, dict):
        raise ValueError(f"{whose} must be an object, found {json_kind(row)}")
    if name not in row:
        raise ValueError(f"{whose} has no {name}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} of {whose} must be a number, found {json_kind(value)}")
    return value
