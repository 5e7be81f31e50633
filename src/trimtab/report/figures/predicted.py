"""Predicted against measured time of every rank, as shares of its step: what a plan depends on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.report.figures.theme import as_chart, colours_of_runs, new_figure, plain
from trimtab.report.figures.thinning import evenly
from trimtab.report.prediction import rank_error_of
from trimtab.report.run import Run
from trimtab.report.sections import Chart, DataTable, Section

_POINTS = 2000


def predicted(runs: Sequence[Run]) -> Section | None:
    """The section; None where no run has both times for several ranks."""
    known = [(run, shares) for run in runs if len(shares := _shares(run)) > 0]
    if not known:
        return None
    thinned = max(len(shares) for _, shares in known) > _POINTS
    return Section(
        title="Predicted against measured",
        text=[
            "Each point is a rank in a step: its part of the step's work, 1 being the mean, as predicted and as "
            "measured. On the diagonal the cost model was right. Absolute times may be off without harm: plans depend "
            "on ratios alone.",
            *([f"At most {_POINTS} points of a run are drawn, evenly spread."] if thinned else []),
        ],
        charts=[_chart(known)],
        table=_table(known),
    )


def _shares(run: Run) -> NDArray[np.float64]:
    """[N, 2] predicted and measured load of every rank over its step's mean, warm steps only."""
    pairs = []
    for step in run.warm:
        both = np.array(step.predicted_rank_ms or []), np.array(step.rank_ms)
        if len(both[0]) == len(both[1]) > 1 and both[0].sum() > 0 and both[1].sum() > 0:
            pairs.append(np.stack([one / one.mean() for one in both], axis=1))
    return np.concatenate(pairs) if pairs else np.zeros((0, 2))


def _chart(known: Sequence[tuple[Run, NDArray[np.float64]]]) -> Chart:
    figure = new_figure(x="predicted, step's mean = 1", y="measured, step's mean = 1")
    low = min(float(shares.min()) for _, shares in known)
    high = max(float(shares.max()) for _, shares in known)
    figure.add_scatter(
        x=[low, high], y=[low, high], mode="lines", line={"color": "#8b95a1", "dash": "dot"}, hoverinfo="skip",
    )  # fmt: skip
    colours = colours_of_runs([run.name for run, _ in known])
    for (run, shares), colour in zip(known, colours, strict=True):
        drawn = np.round(shares[evenly(len(shares), _POINTS)], 4)
        figure.add_scatter(
            x=drawn[:, 0].tolist(),
            y=drawn[:, 1].tolist(),
            mode="markers",
            name=plain(run.name),
            marker={"color": colour, "size": 6, "opacity": 0.6},
            hovertemplate="predicted %{x:.3f}, measured %{y:.3f}<extra>" + plain(run.name) + "</extra>",
        )
    legend = [(run.name, colour) for (run, _), colour in zip(known, colours, strict=True)]
    return as_chart("predicted and measured load of each rank", figure, height=360, legend=legend)


def _table(known: Sequence[tuple[Run, NDArray[np.float64]]]) -> DataTable:
    rows = []
    for run, shares in known:
        error = rank_error_of(run.warm)
        median, p95 = (f"{error.median:.1%}", f"{error.p95:.1%}") if error else ("–", "–")
        varied = len(shares) > 1 and (shares.std(axis=0) > 1e-9).all()
        correlation = f"{np.corrcoef(*shares.T)[0][1]:.2f}" if varied else "–"
        rows.append([run.name, str(len(shares)), median, p95, correlation])
    return DataTable(
        columns=["run", "ranks x steps", "off by (median)", "95 % within", "correlation"],
        rows=rows,
        note="The first two steps of a run are left out.",
    )
