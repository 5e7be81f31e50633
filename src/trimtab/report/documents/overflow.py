"""Memory that a simulated step lacks."""

from __future__ import annotations

from typing import Any


def missing(overflows: list[Any]) -> str:
    """What needs more memory than there is, in one line."""
    return "; ".join(
        f"{each['where']} {each['index']} in {each['phase']} needs {each['needed_gb']:.0f} GB of {each['limit_gb']:.0f}"
        + (f" ({each['count']} such)" if each.get("count", 1) > 1 else "")
        + (f", longest: sample {each['longest']!r}, {each['longest_tokens']:,} tokens" if each.get("longest") else "")
        for each in overflows
    )
