"""What jsonargparse refuses, told in one line: the setting, its value, what it must be."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

_UNKNOWN = re.compile(r"[Uu]nrecogni[sz]ed arguments: (?P<word>--?(?P<name>[\w.]+)|\S+)")
_WRONG_KIND = re.compile(r'Parser key "(?P<name>[\w.]+)": ')
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def told(problem: str, types: Mapping[str, Any], words: Sequence[str]) -> str:
    """The problem in words of the command line.

    Args:
        problem: what the parser said, of any number of lines.
        types: dotted name and type of every setting.
        words: ``--name=value`` arguments, as they were parsed.
    """
    line = " ".join(part.strip() for part in problem.splitlines() if part.strip())
    unknown, wrong = _UNKNOWN.search(line), _WRONG_KIND.search(line)
    if unknown and unknown["name"] is None:
        return f"{unknown['word']!r} is no setting; write name=value, or see --help"
    if unknown:
        near = _nearest(unknown["name"], types)
        remedy = f"did you mean {near}?" if near else "--help lists all settings"
        return f"unknown setting {unknown['name']}; {remedy}"
    if wrong and wrong["name"] in types:
        name = wrong["name"]
        given = [value for word, _, value in (word.partition("=") for word in words) if word == f"--{name}"]
        return f"{name}={given[-1] if given else ''} must be {_described(name, types)}"
    return line


def _described(name: str, types: Mapping[str, Any]) -> str:
    """What a setting's value must be, in words."""
    kind = types[name]
    if dataclasses.is_dataclass(kind):
        nested = next((other for other in types if other.startswith(f"{name}.")), name)
        return f"written setting by setting, such as {nested}=…"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return "a list, such as [a,b]"
    others = [one for one in get_args(kind) if one is not NoneType]
    if others and len(others) < len(get_args(kind)):
        return f"{_described('', {'': others[0]})}, or null"
    return _WORDS.get(kind, str(kind))


def _nearest(unknown: str, types: Mapping[str, Any]) -> str | None:
    """The setting probably meant: the name elsewhere, one it abbreviates (lr: learning_rate), or one alike."""
    last = {name: name.rpartition(".")[2] for name in types}
    wanted = unknown.rpartition(".")[2]
    for name, own in last.items():
        if wanted in (own, "".join(word[0] for word in own.split("_") if "_" in own)):
            return name
    alike: list[str] = difflib.get_close_matches(unknown, types, n=1, cutoff=0.6)
    if alike and not dataclasses.is_dataclass(types[alike[0]]):
        return alike[0]
    own_alike = difflib.get_close_matches(wanted, last.values(), n=1, cutoff=0.7)
    return next((name for name, own in last.items() if own in own_alike), alike[0] if alike else None)
