"""Whether simulated steps may be compared by their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ALIKE = 1e-6


def hold_different(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Their steps hold different numbers of tokens, as far as they say, so that only time for a token compares."""
    told = [float(row["tokens_per_step"]) for row in rows if row.get("tokens_per_step")]
    return bool(told) and max(told) > min(told) * (1 + _ALIKE)
