"""The name probably meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """A question with the known name most alike, and a space to go on behind; "" where none is."""
    alike = difflib.get_close_matches(unknown, list(known), n=1, cutoff=0.6)
    return f"did you mean {alike[0]}? " if alike else ""
