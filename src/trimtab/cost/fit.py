"""Cost coefficients from measured steps.

The time of a step's slowest rank is modelled as max over ranks of a*sum(l^2) + b*sum(l) + c*n, plus an intercept. The
maximum is smoothed, as LoongForge does, and sharpened as the search goes on; all coefficients are kept from falling
below zero; errors count as log(predicted / measured). What the data cannot tell apart is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from trimtab.cost.polynomial import PolynomialCost
from trimtab.cost.rank_work import RankWork
from trimtab.errors import SettingsError

TERMS = ("a", "b", "c", "intercept")
_SHARPNESS = (0.05, 0.01, 0.002)
_FEWEST_STEPS_PER_TERM = 3
# A column that the others reproduce to this share carries nothing of its own.
_OWN_SHARE = 1e-3
# A term whose share of the step is not known to a tenth of the step is not known.
_LARGEST_ERROR = 0.1
# The search starts with every term at work, or a step of idle ranks would have no logarithm.
_LEAST_WEIGHT = 1e-6
_NS_PER_MS = 1e6


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredStep:
    """One step's work and time.

    Attributes:
        work: what each rank computed.
        slowest_ms: compute time of the slowest rank, without waiting for data, optimizer and logging.
    """

    work: RankWork
    slowest_ms: float


@dataclass(frozen=True, kw_only=True)
class FittedCost:
    """The outcome of a fit.

    Attributes:
        language: a, b and c in nanoseconds.
        intercept_ms: time of a step whatever its samples; it does not enter plans.
        terms: the terms that were fitted; the others are zero.
        standard_errors: of each fitted term, in its own unit (ns; ms for the intercept).
        r_squared: share of the variance of measured times that is explained.
        median_error: median of |predicted / measured - 1|.
        steps: measured steps used.
        skipped: first steps left out as cold.
    """

    language: PolynomialCost
    intercept_ms: float
    terms: tuple[str, ...]
    standard_errors: dict[str, float]
    r_squared: float
    median_error: float
    steps: int
    skipped: int

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, with a, b and c at the top; goes into checkpoints and is broadcast as it is."""
        return {
            **self.language.to_json(),
            "intercept_ms": self.intercept_ms,
            "terms": list(self.terms),
            "standard_errors": self.standard_errors,
            "r_squared": self.r_squared,
            "median_error": self.median_error,
            "steps": self.steps,
            "skipped": self.skipped,
        }


def fit(steps: Sequence[MeasuredStep], *, skip_first: int = 2, terms: Sequence[str] = TERMS) -> FittedCost:
    """Fit the cost of a sequence to measured steps.

    Args:
        steps: in the order they ran.
        skip_first: cold steps at the start to leave out (allocation, compilation, caches).
        terms: which of ``TERMS`` to fit; the others are held at zero.

    Raises:
        SettingsError: there are too few steps, a time is not positive, or the data cannot identify a term.
    """
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms:
        raise SettingsError(f"terms to fit must be of {', '.join(TERMS)}; found {', '.join(unknown) or 'none'}")
    used = list(steps[skip_first:])
    needed = _FEWEST_STEPS_PER_TERM * len(terms)
    if len(used) < needed:
        raise SettingsError(
            f"{len(used)} observations{f' after {skip_first} cold ones' if skip_first else ''} cannot fit {len(terms)} "
            f"terms; record at least {needed}"
        )
    measured = np.array([step.slowest_ms for step in used], dtype=np.float64)
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise SettingsError(f"measured times must be positive, found {measured.min()} ms")
    problem = _Problem(_columns(used, terms), measured)
    weights = problem.solve()
    jacobian = problem.jacobian(weights, _SHARPNESS[-1] * float(measured.mean()))
    _check_columns_differ(jacobian, terms)
    errors = _standard_errors(jacobian, problem.residuals(weights), terms)
    return _outcome(problem, weights, errors, terms, skip_first)


class _Problem:
    """Scaled columns [S, R, K] and measured milliseconds [S]."""

    def __init__(self, columns: NDArray[np.float64], measured: NDArray[np.float64]) -> None:
        self.scale = columns.mean(axis=(0, 1))
        self.scale[self.scale == 0] = 1.0
        self.columns = columns / self.scale
        self.measured = measured

    def solve(self) -> NDArray[np.float64]:
        """Non-negative weights [K] of the scaled columns."""
        weights, _ = optimize.nnls(self.columns.mean(axis=1) / self.measured[:, None], np.ones(len(self.measured)))
        weights = np.maximum(weights, _LEAST_WEIGHT * weights.sum())
        for sharpness in _SHARPNESS:
            temperature = sharpness * float(self.measured.mean())
            found = optimize.minimize(
                self._loss, weights, args=(temperature,), jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(weights)
            )
            weights = found.x
        return np.asarray(weights)

    def _loss(self, weights: NDArray[np.float64], temperature: float) -> tuple[float, NDArray[np.float64]]:
        predicted = self._smooth_maximum(weights, temperature)
        error = np.log(predicted / self.measured)
        return float(error @ error), 2 * error @ self.jacobian(weights, temperature)

    def _smooth_maximum(self, weights: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
        times = self.columns @ weights
        largest = times.max(axis=1)
        total = np.exp((times - largest[:, None]) / temperature).sum(axis=1)
        return np.asarray(largest + temperature * np.log(total))

    def jacobian(self, weights: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
        """Change [S, K] of the logarithm of the predicted time with each weight."""
        times = self.columns @ weights
        share = np.exp((times - times.max(axis=1, keepdims=True)) / temperature)
        share /= share.sum(axis=1, keepdims=True)
        predicted = self._smooth_maximum(weights, temperature)
        return np.asarray(np.einsum("sr,srk->sk", share, self.columns) / predicted[:, None])

    def predicted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Milliseconds [S] of the slowest rank."""
        return np.asarray((self.columns @ weights).max(axis=1))

    def residuals(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithms of predicted over measured time [S]."""
        return np.asarray(np.log(self.predicted(weights) / self.measured))


def _columns(steps: Sequence[MeasuredStep], terms: Sequence[str]) -> NDArray[np.float64]:
    """[S, R, K]; ranks are padded with idle ones where steps ran on different numbers of ranks."""
    ranks = max(len(step.work.tokens) for step in steps)
    result = np.zeros((len(steps), ranks, len(terms)), dtype=np.float64)
    for row, step in enumerate(steps):
        here = len(step.work.tokens)
        values = {
            "a": step.work.squared_tokens,
            "b": step.work.tokens,
            "c": step.work.samples,
            "intercept": np.ones(here),
        }
        result[row, :here] = np.stack([values[term] for term in terms], axis=1)
    return result


def _check_columns_differ(jacobian: NDArray[np.float64], terms: Sequence[str]) -> None:
    """Refuse terms that the data cannot tell from the others.

    Raises:
        SettingsError: names the term and the remedy.
    """
    norms = np.linalg.norm(jacobian, axis=0)
    unit = jacobian / np.where(norms > 0, norms, 1.0)
    for index, term in enumerate(terms):
        others = np.delete(unit, index, axis=1)
        explained = others @ np.linalg.lstsq(others, unit[:, index], rcond=None)[0]
        if norms[index] == 0 or np.linalg.norm(unit[:, index] - explained) < _OWN_SHARE:
            kept = ",".join(other for other in terms if other != term)
            raise SettingsError(
                f"the steps cannot identify term {term!r}: its work is a fixed mix of the others' in every step "
                f"(samples of one length, or packs of one size?); record more varied batches, or fit {kept} alone"
            )


def _standard_errors(
    jacobian: NDArray[np.float64], residuals: NDArray[np.float64], terms: Sequence[str]
) -> NDArray[np.float64]:
    """Standard error [K] of the scaled weights; refuses terms that noise drowns.

    Raises:
        SettingsError: names the term, its error and the remedy.
    """
    steps, count = jacobian.shape
    variance = float(residuals @ residuals) / (steps - count)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    share = errors * np.abs(jacobian).mean(axis=0)
    worst = int(share.argmax())
    if share[worst] > _LARGEST_ERROR:
        raise SettingsError(
            f"the steps cannot identify term {terms[worst]!r}: noise leaves its share of the step time uncertain by "
            f"{share[worst]:.0%}; record more steps, more varied batches, or leave the term out"
        )
    return np.asarray(errors)


def _outcome(
    problem: _Problem, weights: NDArray[np.float64], errors: NDArray[np.float64], terms: Sequence[str], skipped: int
) -> FittedCost:
    found = dict(zip(terms, (weights / problem.scale).tolist(), strict=True))
    spread = dict(zip(terms, (errors / problem.scale).tolist(), strict=True))
    unit = {"a": _NS_PER_MS, "b": _NS_PER_MS, "c": _NS_PER_MS, "intercept": 1.0}
    coefficients = {term: found.get(term, 0.0) * unit[term] for term in TERMS}
    predicted, measured = problem.predicted(weights), problem.measured
    unexplained = float(((predicted - measured) ** 2).sum()) / float(((measured - measured.mean()) ** 2).sum() or 1.0)
    return FittedCost(
        language=PolynomialCost(a=coefficients["a"], b=coefficients["b"], c=coefficients["c"]),
        intercept_ms=coefficients["intercept"],
        terms=tuple(terms),
        standard_errors={term: spread[term] * unit[term] for term in terms},
        r_squared=1 - unexplained,
        median_error=float(np.median(np.abs(predicted / measured - 1))),
        steps=len(measured),
        skipped=skipped,
    )
