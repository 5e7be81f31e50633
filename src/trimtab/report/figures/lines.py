"""A figure of each step as a line a run, and the table of several such figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from trimtab.report.figures.theme import as_chart, colours_of_runs, dash_of, new_figure, plain
from trimtab.report.figures.thinning import TABLE_ROWS, evenly, firsts, medians, note
from trimtab.report.run import Run
from trimtab.report.sections import Chart, DataTable

Column = Callable[[Run], Sequence[float | None]]
"""A figure of every step of a run."""


def line_chart(
    title: str, runs: Sequence[Run], column: Column, *, unit: str = "", from_zero: bool = False, height: int = 300
) -> Chart:
    """One line a run over its steps."""
    figure = new_figure(x="step", y=unit, from_zero=from_zero)
    colours = colours_of_runs([run.name for run in runs])
    for position, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        add_line(figure, run, column(run), run.name, colour=colour, dash=dash_of(position // 8))
    legend = [(run.name, colour) for run, colour in zip(runs, colours, strict=True)]
    return as_chart(title, figure, height=height, legend=legend)


def add_line(
    figure: go.Figure, run: Run, values: Sequence[float | None], name: str, *, colour: str, dash: str = "solid"
) -> None:
    """Add one line of a run's values."""
    figure.add_scatter(
        x=firsts([step.step for step in run.steps]),
        y=medians(values),
        name=plain(name),
        mode="lines+markers" if len(values) <= 60 else "lines",
        marker={"size": 4},
        line={"color": colour, "width": 2, "dash": dash},
        hovertemplate="step %{x}: %{y:.4g}<extra>" + plain(name) + "</extra>",
    )


def step_table(runs: Sequence[Run], columns: Sequence[tuple[str, Column, str]]) -> DataTable:
    """Rows of steps, evenly spread where there are many.

    Args:
        runs: R, side by side.
        columns: heading, values, and format of each figure.
    """
    rows, total = [], 0
    for run in runs:
        values = [column(run) for _, column, _ in columns]
        total += len(run.steps)
        for at in evenly(len(run.steps), max(2, TABLE_ROWS // len(runs))):
            cells = [cell(one[at], pattern) for one, (_, _, pattern) in zip(values, columns, strict=True)]
            rows.append([run.name, str(run.steps[at].step), *cells])
    thinned = "" if len(rows) == total else f"{len(rows)} of {total} steps; steps.jsonl has all."
    return DataTable(columns=["run", "step", *(heading for heading, _, _ in columns)], rows=rows, note=thinned)


def cell(value: float | None, pattern: str) -> str:
    """A number as text; a dash where there is none."""
    if value is None:
        return "–"
    return pattern.format(value) if math.isfinite(value) else "not finite"


def thinning_note(runs: Sequence[Run]) -> list[str]:
    """A sentence where lines were thinned."""
    said = note(max(len(run.steps) for run in runs))
    return [said] if said else []
