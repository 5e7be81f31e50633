"""Numbers of things in sentences."""

from __future__ import annotations


def number_of(count: int, thing: str, things: str = "") -> str:
    """``1 sample``, ``2,000 samples``; ``things`` is the plural where it is not ``thing`` with an s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
