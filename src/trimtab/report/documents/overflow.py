"""Memory that simulated steps lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.schema.number_of import number_of


def missing(overflows: list[Any]) -> str:
    """What needs more memory than there is, in one line."""
    return "; ".join(
        f"{each['where']} {each['index']} in {each['phase']} needs {each['needed_gb']:.0f} GB of {each['limit_gb']:.0f}"
        + (f" ({each['count']} such)" if each.get("count", 1) > 1 else "")
        + (f", longest: {_longest(each)}" if each.get("longest") else "")
        for each in overflows
    )


def overflow_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not fit, a line for each place and phase with all the strategies that lack memory there."""
    places: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        for each in row["out_of_memory"]:
            place = (str(each["where"]), str(each["phase"]), f"{each['limit_gb']:.0f}")
            places.setdefault(place, {})[str(row["name"])] = each
    return [_line(*place, lacking) for place, lacking in places.items()]


def _line(where: str, phase: str, limit: str, lacking: Mapping[str, Mapping[str, Any]]) -> str:
    if len(lacking) == 1:
        return "".join(f"{name} does not fit: {missing([each])}" for name, each in lacking.items())
    counts = {int(each.get("count", 1)) for each in lacking.values()}
    alike: dict[str, list[str]] = {}
    for name, each in lacking.items():
        on = f" on {number_of(int(each.get('count', 1)), where)}" if len(counts) > 1 else ""
        alike.setdefault(f"{each['needed_gb']:.0f} GB{on}", []).append(name)
    told = "; ".join(f"{', '.join(names)} {needs}" for needs, names in alike.items())
    such = f", on {number_of(counts.pop(), where)} each" if len(counts) == 1 else ""
    longest = max(lacking.values(), key=lambda each: int(each.get("longest_tokens") or 0))
    sample = f" Longest there: {_longest(longest)}." if longest.get("longest") else ""
    return f"{len(lacking)} strategies do not fit the {limit} GB of a {where} in {phase}{such}: {told}.{sample}"


def _longest(each: Mapping[str, Any]) -> str:
    return f"sample {each['longest']!r}, {each['longest_tokens']:,} tokens"
