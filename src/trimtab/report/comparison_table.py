"""Medians of runs side by side, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from trimtab.report.comparison import Comparison, RunSummary
from trimtab.schema.number_of import number_of

_ROWS = (
    ("step time, ms", "step_ms", "{:.0f}"),
    ("tokens / s", "tokens_per_s", "{:.0f}"),
    ("exposed data time, ms", "exposed_data_ms", "{:.1f}"),
    ("busiest rank / mean, measured", "rank_ratio", "{:.3f}"),
    ("a rank's share, prediction off by", "rank_error", "{:.1%}"),
    ("step ratio, predicted", "step_ratio", "{:.3f}"),
    ("bound ratio, predicted", "bound_ratio", "{:.3f}"),
)


def summary_rows(runs: Mapping[str, RunSummary]) -> list[list[str]]:
    """A row a figure, a column a run; the figure's name first, phases last."""
    rows = []
    for label, name, pattern in _ROWS:
        values = [getattr(summary, name) for summary in runs.values()]
        rows.append([label, *("–" if value is None else pattern.format(value) for value in values)])
    phases = dict.fromkeys(phase for summary in runs.values() for phase in summary.phases)
    for phase in phases:
        values = [summary.phases.get(phase) for summary in runs.values()]
        rows.append([f"  {phase}, slowest rank, ms", *("–" if value is None else f"{value:.0f}" for value in values)])
    return rows


def comparison_table(comparison: Comparison) -> Table:
    """Medians of both runs side by side."""
    count = len(comparison.steps)
    table = Table(title=f"medians over {number_of(count, 'step')}; balanced is {comparison.said()}")
    table.add_column("")
    table.add_column("baseline", justify="right")
    table.add_column("balanced", justify="right")
    for row in summary_rows({"baseline": comparison.baseline, "balanced": comparison.balanced}):
        table.add_row(*row)
    return table
