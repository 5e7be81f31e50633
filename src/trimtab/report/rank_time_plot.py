"""Time per rank, before and after, as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from trimtab.errors import SettingsError
from trimtab.schema.reports import StepReport

_RANK_COLOURS = ("#2a6fbb", "#e07b39", "#3a9d6e", "#b04a8f", "#8a6d3b", "#5b5ea6", "#c0392b", "#17a2b8")


def write_rank_time_plot(path: Path, *, balanced: Sequence[StepReport], baseline: Sequence[StepReport]) -> None:
    """Write bars of every rank's compute time in every step, baseline above balanced, and the phases beside.

    Raises:
        SettingsError: plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise SettingsError("plots need plotly; install trimtab[report]") from error
    figure = make_subplots(
        rows=2,
        cols=2,
        column_widths=[0.74, 0.26],
        vertical_spacing=0.14,
        horizontal_spacing=0.09,
        subplot_titles=(
            _title("baseline", baseline),
            "median phase, slowest rank",
            _title("balanced", balanced),
            "median step",
        ),
    )
    highest = max(max(report.rank_ms) for report in (*baseline, *balanced))
    for row, reports in ((1, baseline), (2, balanced)):
        for rank in range(len(reports[0].rank_ms)):
            figure.add_trace(_rank_bars(go, rank, reports, legend=row == 1), row=row, col=1)
        figure.update_yaxes(title_text="compute, ms", range=[0, highest * 1.05], row=row, col=1)
    figure.update_xaxes(title_text="step", row=2, col=1)
    _add_phases(go, figure, baseline, balanced)
    _add_steps(go, figure, baseline, balanced)
    figure.update_layout(
        title="Compute time of each rank in each step: equal bars mean nobody waits",
        barmode="group",
        template="plotly_white",
        height=760,
        legend={"orientation": "h", "y": -0.08},
        margin={"t": 110},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True, full_html=True, config={"responsive": True})


def _title(name: str, reports: Sequence[StepReport]) -> str:
    ratio = median(max(r.rank_ms) / max(sum(r.rank_ms) / len(r.rank_ms), 1e-9) for r in reports)
    return f"{name}: busiest rank / mean = {ratio:.2f} (median)"


def _rank_bars(go: Any, rank: int, reports: Sequence[StepReport], *, legend: bool) -> Any:
    return go.Bar(
        x=[report.step for report in reports],
        y=[report.rank_ms[rank] for report in reports],
        name=f"rank {rank}",
        marker_color=_RANK_COLOURS[rank % len(_RANK_COLOURS)],
        legendgroup=f"rank {rank}",
        showlegend=legend,
    )


def _add_phases(go: Any, figure: Any, baseline: Sequence[StepReport], balanced: Sequence[StepReport]) -> None:
    for name, reports, colour in (("baseline", baseline, "#9aa3ad"), ("balanced", balanced, "#2c3e50")):
        phases = list(reports[0].phases_ms)
        values = [median(max(report.phases_ms[phase]) for report in reports) for phase in phases]
        bars = go.Bar(x=values, y=phases, orientation="h", name=name, marker_color=colour, legendgroup=name)
        figure.add_trace(bars, row=1, col=2)
    figure.update_xaxes(title_text="ms", row=1, col=2)
    figure.update_yaxes(autorange="reversed", row=1, col=2)


def _add_steps(go: Any, figure: Any, baseline: Sequence[StepReport], balanced: Sequence[StepReport]) -> None:
    for name, reports, colour in (("baseline", baseline, "#9aa3ad"), ("balanced", balanced, "#2c3e50")):
        box = go.Box(
            y=[report.step_ms for report in reports], name=name, marker_color=colour, legendgroup=name, showlegend=False
        )
        figure.add_trace(box, row=2, col=2)
    figure.update_yaxes(title_text="step, ms", rangemode="tozero", row=2, col=2)
