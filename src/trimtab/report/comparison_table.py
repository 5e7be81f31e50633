"""The comparison as a table in the terminal."""

from __future__ import annotations

from rich.table import Table

from trimtab.report.comparison import Comparison

_ROWS = (
    ("step time, ms", "step_ms", "{:.0f}"),
    ("tokens / s", "tokens_per_s", "{:.0f}"),
    ("exposed data time, ms", "exposed_data_ms", "{:.1f}"),
    ("busiest rank / mean, measured", "rank_ratio", "{:.3f}"),
    ("a rank's share of a step, predicted to", "rank_error", "{:.1%}"),
    ("step ratio, predicted", "step_ratio", "{:.3f}"),
    ("bound ratio, predicted", "bound_ratio", "{:.3f}"),
)


def comparison_table(comparison: Comparison) -> Table:
    """Medians of both runs side by side."""
    count = len(comparison.steps)
    table = Table(title=f"medians over {count} steps; balanced is {comparison.speedup:.2f}x as fast, paired by step")
    table.add_column("")
    table.add_column("baseline", justify="right")
    table.add_column("balanced", justify="right")
    for label, name, pattern in _ROWS:
        values = (getattr(comparison.baseline, name), getattr(comparison.balanced, name))
        table.add_row(label, *("-" if value is None else pattern.format(value) for value in values))
    for phase, baseline in comparison.baseline.phases.items():
        table.add_row(f"  {phase}, slowest rank, ms", f"{baseline:.0f}", f"{comparison.balanced.phases[phase]:.0f}")
    return table
