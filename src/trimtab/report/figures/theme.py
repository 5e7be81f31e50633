"""Colours and layout that all figures share; the page sets ink and paper for light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from trimtab.report.sections import Chart, Frame

PHASE_COLOURS = {
    "data": "#b8860b",
    "vision": "#3b82c4",
    "exchange": "#9467bd",
    "language": "#d9742b",
    "optimizer": "#4f9d69",
    "rollout": "#3b82c4",
    "reward": "#c2577f",
    "inference": "#9467bd",
    "update": "#d9742b",
}
_RUN_COLOURS = {"baseline": "#8b95a1", "balanced": "#2f80ed", "observed": "#d9742b"}
_OTHERS = ("#2f80ed", "#d9742b", "#2a9d8f", "#b04a8f", "#b8860b", "#7a6fd0", "#c0504d", "#8b95a1")
_DASHES = ("solid", "dash", "dot", "dashdot")


def colour_of_phase(phase: str, position: int) -> str:
    """A phase has its colour in every figure; unknown ones take the next that is free."""
    return PHASE_COLOURS.get(phase, _OTHERS[position % len(_OTHERS)])


def colours_of_runs(names: Sequence[str]) -> list[str]:
    """A colour for each run; the usual variants keep theirs where each name occurs once."""
    if len(set(names)) == len(names) and set(names) <= set(_RUN_COLOURS):
        return [_RUN_COLOURS[name] for name in names]
    return [_OTHERS[position % len(_OTHERS)] for position in range(len(names))]


def dash_of(position: int) -> str:
    """Colours repeat after eight runs; dashes tell those apart, and help those who see few colours."""
    return _DASHES[position % len(_DASHES)]


def plain(text: str) -> str:
    """Text that plotly shows as it is: it takes some tags for formatting."""
    return html.escape(text)


def new_figure(*, x: str = "", y: str = "", from_zero: bool = False, **layout: Any) -> go.Figure:
    """An empty figure in the page's style.

    Args:
        x: title of the axis.
        y: title of the axis.
        from_zero: the y axis starts at zero.
        **layout: further settings of plotly's layout.
    """
    figure = go.Figure()
    figure.update_layout(
        template="none",
        margin={"l": 56, "r": 12, "t": 16, "b": 44},
        showlegend=False,  # the page's own wraps on narrow screens
        hovermode="closest",
        font={"family": "system-ui, sans-serif", "size": 13},
        **layout,
    )
    figure.update_xaxes(title_text=plain(x), automargin=True, zeroline=False)
    figure.update_yaxes(
        title_text=plain(y), automargin=True, zeroline=False, rangemode="tozero" if from_zero else "normal"
    )
    return figure


def as_chart(
    title: str,
    figure: go.Figure,
    *,
    height: int = 320,
    frames: Sequence[Frame] = (),
    first: int = 0,
    slider: str = "",
    legend: Sequence[tuple[str, str]] = (),
) -> Chart:
    """The figure as the page holds it; one entry is no legend."""
    return Chart(
        title=title,
        figure=figure.to_json(),
        height=height,
        frames=list(frames),
        first=first,
        slider=slider,
        legend=legend if len(legend) > 1 else (),
    )
