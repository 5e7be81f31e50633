"""How good the predicted times of ranks were, from a run's records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.schema.reports import StepReport

RankTimes = tuple[Any, Any]
"""Predicted and measured milliseconds of a step's ranks; None where a record lacks them."""


@dataclass(frozen=True, kw_only=True)
class RankError:
    """|predicted / measured - 1| of a rank's share of its step; shares, since a plan depends on ratios alone.

    Attributes:
        median, p95: over ranks and steps.
    """

    median: float
    p95: float

    def __str__(self) -> str:
        """One sentence for people."""
        off = f"off by {self.median:.1%} (median; 95% of them by at most {self.p95:.1%})"
        return f"predictions of a rank's share of a step were {off}"


def rank_error(times: Iterable[RankTimes]) -> RankError | None:
    """Over the steps that have both times; None where none has, or there is but one rank."""
    errors: list[float] = []
    for pair in times:
        predicted, measured = (np.array(one or [], dtype=np.float64) for one in pair)
        if len(predicted) == len(measured) > 1 and predicted.sum() > 0 and (measured > 0).all():
            errors += np.abs(predicted / predicted.sum() / (measured / measured.sum()) - 1).tolist()
    if not errors:
        return None
    return RankError(median=float(np.median(errors)), p95=float(np.quantile(errors, 0.95)))


def rank_error_of(reports: Iterable[StepReport]) -> RankError | None:
    """The same of recorded steps."""
    return rank_error((report.predicted_rank_ms, report.rank_ms) for report in reports)
