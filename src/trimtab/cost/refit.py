"""New coefficients from a run's recent steps, taken only where they foretell the newest steps better than the old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.fit import MeasuredStep, fit
from trimtab.cost.observations import PhaseRecord, observations
from trimtab.cost.polynomial import PolynomialCost
from trimtab.errors import SettingsError

# The fullest set that the steps tell apart is taken: short sequences tell no l^2, equal counts no overhead of each.
_TERM_SETS = (("a", "b", "c", "intercept"), ("a", "b", "intercept"), ("b", "c", "intercept"), ("b", "intercept"))
_NEWEST_SHARE = 4  # one step in four, the newest ones, judges and is not fitted to
_MOST_OBSERVATIONS = 4096  # a fit stays well under a second whatever the number of ranks
_FAR_OFF = 4.0  # robust standard deviations
_LEAST_SPREAD = 1e-3
_LEAST_GROWTH = 0.02  # below this share of the longest time, what work seems to cost is noise


@dataclass(frozen=True, kw_only=True)
class Refit:
    """What came of fitting one phase again.

    Attributes:
        cost: the new coefficients, or None where the old ones stay.
        error: how far the new ones are off on the newest steps: median of |predicted / measured - 1|.
        error_in_force: the same of the old ones.
        kept: why the old ones stay: the fit was "refused" or foretells the newest steps no better ("no better").
        reason: the same in words.
    """

    cost: PolynomialCost | None
    error: float | None = None
    error_in_force: float | None = None
    kept: Literal["refused", "no better"] | None = None
    reason: str = ""


def refit(records: Sequence[PhaseRecord], in_force: PolynomialCost | None) -> Refit:
    """Fit to all but the newest quarter of the steps, and compare on that quarter.

    Steps far off the fit (another program took the processor, a cold start) are dropped and the rest fitted again.

    Args:
        records: recent steps in the order they ran.
        in_force: coefficients that plan now; None: nothing to compare with.
    """
    newest = max(1, len(records) // _NEWEST_SHARE)
    try:
        found = _fit_twice(_thinned(observations(records[:-newest])))
    except (SettingsError, np.linalg.LinAlgError) as refusal:
        return Refit(cost=None, kept="refused", reason=str(refusal))
    judged = observations(records[-newest:])
    if not judged or not all(step.slowest_ms > 0 for step in judged):
        return Refit(cost=None, kept="refused", reason="the newest steps hold no measured time to compare with")
    error = prediction_error(found, judged)
    if in_force is None:
        return Refit(cost=found, error=error)
    before = prediction_error(in_force, judged)
    if error < before:
        return Refit(cost=found, error=error, error_in_force=before)
    words = f"new coefficients are {error:.1%} off on the newest steps, those in force {before:.1%}"
    return Refit(cost=None, error=error, error_in_force=before, kept="no better", reason=words)


def prediction_error(cost: PolynomialCost, steps: Sequence[MeasuredStep]) -> float:
    """Median of |predicted / measured - 1|, the constant part of a step's time taken from the steps themselves."""
    work = _work_ms(cost, steps)
    measured = np.array([step.slowest_ms for step in steps])
    constant = max(0.0, float(np.median(measured - work)))
    return float(np.median(np.abs((work + constant) / measured - 1)))


def _fit_twice(steps: list[MeasuredStep]) -> PolynomialCost:
    first = _fullest_fit(steps)
    work = _work_ms(first, steps)
    measured = np.array([step.slowest_ms for step in steps])
    off = np.log((work + max(0.0, float(np.median(measured - work)))) / measured)
    off -= np.median(off)
    limit = _FAR_OFF * max(1.4826 * float(np.median(np.abs(off))), _LEAST_SPREAD)
    kept = [step for step, distance in zip(steps, np.abs(off), strict=True) if distance <= limit]
    found = first if len(kept) == len(steps) else _fullest_fit(kept)
    grows_by = float(_work_ms(found, kept).max()) / max(step.slowest_ms for step in kept)
    if grows_by < _LEAST_GROWTH:
        raise SettingsError(
            f"measured times do not grow with the work ({grows_by:.1%} of the longest); is it overhead?"
        )
    return found


def _fullest_fit(steps: list[MeasuredStep]) -> PolynomialCost:
    refusal = SettingsError("no terms to fit")
    for terms in _TERM_SETS:
        try:
            return fit(steps, skip_first=0, terms=terms).language
        except SettingsError as error:
            refusal = error
    raise refusal


def _work_ms(cost: PolynomialCost, steps: Sequence[MeasuredStep]) -> NDArray[np.float64]:
    """float64 [S], predicted time of the slowest rank, overhead of a step left out."""
    return np.array(
        [
            (cost.a * step.work.squared_tokens + cost.b * step.work.tokens + cost.c * step.work.samples).max() / 1e6
            for step in steps
        ]
    )


def _thinned(steps: list[MeasuredStep]) -> list[MeasuredStep]:
    return steps[:: -(-len(steps) // _MOST_OBSERVATIONS) or 1]
