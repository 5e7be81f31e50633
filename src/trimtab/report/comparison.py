"""A balanced run beside its baseline: the same steps of both, medians over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from trimtab.errors import MetadataError
from trimtab.report.prediction import rank_error_of
from trimtab.schema.reports import StepReport

WARM_UP_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Medians over the compared steps; see ``schema.reports.GLOSSARY``.

    Attributes:
        step_ms, exposed_data_ms: of a step.
        step_ratio, bound_ratio: predicted, of the plans that ran.
        rank_ratio: measured, processor time of the busiest rank / mean over ranks.
        rank_error: how far a rank's predicted share of a step was off, median; None with one rank.
        tokens_per_s: over all ranks.
        phases: slowest rank, milliseconds of each phase.
    """

    step_ms: float
    exposed_data_ms: float
    step_ratio: float
    bound_ratio: float
    rank_ratio: float
    rank_error: float | None
    tokens_per_s: float
    phases: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, rounded."""
        plain = {
            name: value if value is None else round(value, 4) for name, value in vars(self).items() if name != "phases"
        }
        return {**plain, "phases": {name: round(value, 3) for name, value in self.phases.items()}}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs over the same steps.

    Attributes:
        steps: step numbers compared, the first ones (process warm-up) left out.
        balanced, baseline: their summaries.
        speedup: median over steps of baseline time / balanced time, paired by step.
        speedup_quartiles: of the same; a machine busy with other work spreads them.
    """

    steps: list[int]
    balanced: RunSummary
    baseline: RunSummary
    speedup: float
    speedup_quartiles: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        return {
            "steps": len(self.steps),
            "balanced": self.balanced.to_json(),
            "baseline": self.baseline.to_json(),
            "speedup": round(self.speedup, 4),
            "speedup_quartiles": [round(factor, 4) for factor in self.speedup_quartiles],
        }

    def said(self) -> str:
        """How much faster, and how sure that is."""
        low, high = self.speedup_quartiles
        return f"{self.speedup:.2f}x as fast, paired by step ({low:.2f}x to {high:.2f}x in the middle half)"


def compare(balanced: Sequence[StepReport], baseline: Sequence[StepReport]) -> Comparison:
    """Compare the steps both runs have, leaving out the first two of each run.

    Raises:
        MetadataError: the runs share no such step, or a shared step holds different samples.
    """
    by_step = {report.step: report for report in baseline}
    pairs = [(b, by_step[b.step]) for b in balanced if b.step in by_step and b.step >= WARM_UP_STEPS]
    if not pairs:
        raise MetadataError(
            f"the runs share no step after the first {WARM_UP_STEPS}; train both for at least {WARM_UP_STEPS + 1} steps"
        )
    for one, other in pairs:
        if (one.tokens, one.samples) != (other.tokens, other.samples):
            raise MetadataError(
                f"step {one.step} has {one.samples} samples of {one.tokens} tokens in one run and {other.samples} of "
                f"{other.tokens} in the other; compare runs over the same table and seed"
            )
    factors = [other.step_ms / one.step_ms for one, other in pairs]
    low, high = np.quantile(factors, (0.25, 0.75)).tolist()
    return Comparison(
        steps=[one.step for one, _ in pairs],
        balanced=summarise([one for one, _ in pairs]),
        baseline=summarise([other for _, other in pairs]),
        speedup=median(factors),
        speedup_quartiles=(low, high),
    )


def summarise(reports: Sequence[StepReport]) -> RunSummary:
    """Medians over steps."""

    def middle(value: Callable[[StepReport], float]) -> float:
        return median(value(report) for report in reports)

    error = rank_error_of(reports)
    return RunSummary(
        step_ms=middle(lambda r: r.step_ms),
        exposed_data_ms=middle(lambda r: r.exposed_data_ms),
        step_ratio=middle(lambda r: r.step_ratio),
        bound_ratio=middle(lambda r: r.bound_ratio),
        rank_ratio=middle(lambda r: max(r.rank_ms) / max(fmean(r.rank_ms), 1e-9)),
        rank_error=error.median if error else None,
        tokens_per_s=middle(lambda r: r.tokens / max(r.step_ms, 1e-9) * 1e3),
        phases={phase: middle(lambda r, p=phase: max(r.phases_ms[p])) for phase in reports[0].phases_ms},  # type: ignore[misc]
    )
