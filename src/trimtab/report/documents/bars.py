"""Bars with a row for each strategy, or any other named thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from trimtab.report.figures.theme import as_chart, new_figure, plain
from trimtab.report.sections import Chart


def bar_chart(
    title: str,
    names: Sequence[str],
    series: Mapping[str, tuple[Sequence[float | None], str]],
    *,
    unit: str,
    stacked: bool = False,
    one_line: bool = False,
    crowded: Set[int] = frozenset(),
) -> Chart:
    """Horizontal bars.

    Args:
        title: what they show.
        names: N, a row each, first on top.
        series: N values and a colour by name.
        unit: of the values.
        stacked: series end to end instead of side by side.
        one_line: draw a line at 1, the best a ratio can be.
        crowded: indices of names that do not fit in memory; hatched, and said to be so, once where none fits.
    """
    if none_fits := 1 < len(names) == len(crowded):
        title = f"{title}; none fits in memory"
    marked = set() if none_fits else crowded
    labels = [plain(one) + ("<br>does not fit" if at in marked else "") for at, one in enumerate(names)]
    hatches = ["/" if at in crowded else "" for at in range(len(names))]
    figure = new_figure(x=unit, barmode="stack" if stacked else "group", bargap=0.3)
    for name, (values, colour) in series.items():
        figure.add_bar(
            x=list(values),
            y=labels,
            orientation="h",
            name=plain(name),
            marker={"color": colour, "pattern": {"shape": hatches}} if crowded else {"color": colour},
            hovertemplate="%{y}: " + plain(name) + " %{x:.4g}<extra></extra>",
        )
    figure.update_xaxes(nticks=4, tickangle=0)  # a phone has no room for more, nor for slanted ones
    figure.update_yaxes(autorange="reversed", type="category")
    if one_line:
        figure.add_vline(x=1, line_dash="dot", line_color="#8b95a1")
    legend = [(name, colour) for name, (_, colour) in series.items()]
    per_row = (38 if marked else 24) if stacked else 14 + 12 * len(series)
    return as_chart(title, figure, height=70 + per_row * len(names), legend=legend)
