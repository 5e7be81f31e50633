"""Figures of a document that have no place of their own: listed by name, so that nothing is dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from trimtab.report.sections import DataTable, Section

_LONGEST = 200


def rest(document: dict[str, Any], shown: Collection[str]) -> list[Section]:
    """A section of everything but ``shown``; none where nothing is left."""
    rows = [list(row) for name, value in document.items() if name not in shown for row in _flat(name, value)]
    if not rows:
        return []
    cut = rows[:_LONGEST]
    note = f"{_LONGEST} of {len(rows)}; the file has all." if len(rows) > _LONGEST else ""
    return [Section(title="Other figures", table=DataTable(columns=["name", "value"], rows=cut, note=note))]


def number(value: Any) -> str:
    """A value as text; numbers short."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for inner, one in value.items():
            yield from _flat(f"{name}.{inner}", one)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for position, one in enumerate(value):
            yield from _flat(f"{name}[{position}]", one)
    elif isinstance(value, list):
        yield name, ", ".join(number(one) for one in value) or "–"
    else:
        yield name, number(value)
