"""Kinds of values of a record, as its author names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def json_kind(value: Any) -> str:
    """The kind of a value: ``text``, ``a number``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, bytes):
        return "bytes"
    return "a list" if isinstance(value, Sequence) else f"a {type(value).__name__}"
