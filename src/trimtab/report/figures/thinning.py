"""Long runs in few points, so that a page stays readable and small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

POINTS = 500
TABLE_ROWS = 60


def bins(count: int, most: int) -> list[range]:
    """Consecutive stretches of positions, at most ``most``, all but the last of one length."""
    width = max(1, math.ceil(count / most))
    return [range(start, min(start + width, count)) for start in range(0, count, width)]


def medians(values: Sequence[float | None], most: int = POINTS) -> list[float | None]:
    """The median of each stretch; None where a stretch has no finite value."""
    found: list[float | None] = []
    for stretch in bins(len(values), most):
        known = [value for value in (values[at] for at in stretch) if value is not None and math.isfinite(value)]
        found.append(median(known) if known else None)
    return found


def firsts(values: Sequence[int], most: int = POINTS) -> list[int]:
    """The first of each stretch: where its point stands."""
    return [values[stretch.start] for stretch in bins(len(values), most)]


def evenly(count: int, most: int) -> list[int]:
    """At most ``most`` positions, evenly spread, both ends among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def note(count: int, most: int = POINTS) -> str:
    """What the reader must know of the thinning; empty where there is none."""
    width = len(bins(count, most)[0]) if count else 1
    return "" if width == 1 else f"Each point is the median of {width} steps."
