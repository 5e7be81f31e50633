"""Computing time of every rank in every step: bars for a few ranks, a heat map for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from plotly.subplots import make_subplots

from trimtab.report.figures.theme import as_chart, new_figure, plain
from trimtab.report.figures.thinning import bins
from trimtab.report.run import Run
from trimtab.report.sections import Chart, DataTable, Section
from trimtab.schema.reports import StepReport

_BARS = 4
_COLUMNS = 60
_RANK_COLOURS = ("#2a6fbb", "#e07b39", "#3a9d6e", "#b04a8f")
_COLOUR_SCALE = "Viridis"


def rank_time(runs: Sequence[Run]) -> Section:
    """The section."""
    few = max(run.ranks for run in runs) <= _BARS
    runs, shared = _over_shared_steps(runs)
    text = (
        ["Time each rank spent computing. Equal bars mean nobody waits. Behind each name: busiest rank / mean, median."]
        if few
        else [
            "Time each rank spent computing, over the mean of its step: 1 everywhere means nobody waits. A bright row "
            "is a rank that is always slow, a bright column a step whose work could not be evened. Behind each name: "
            "busiest rank / mean, median."
        ]
    )
    if any(step.compute_includes_waiting for run in runs for step in run.steps[:1]):
        text.append("These times count waiting for other ranks too, which makes ranks look more even than they are.")
    widths = {len(stretch) for run in runs for stretch in bins(len(run.steps), _COLUMNS)[:1]}
    if shared:
        text.append(f"Steps that all runs have: {shared}.")
    if max(widths) > 1:
        text.append(f"Each column is the mean of up to {max(widths)} steps.")
    return Section(
        title="Computing time of each rank",
        text=text,
        charts=[_bars(runs) if few else _heat(runs)],
        table=_table(runs),
    )


def _over_shared_steps(runs: Sequence[Run]) -> tuple[list[Run], int]:
    """The runs cut to the steps all have, and how many those are; 0 where nothing was cut."""
    shared = set.intersection(*({step.step for step in run.steps} for run in runs))
    if not shared or all(len(run.steps) == len(shared) for run in runs):
        return list(runs), 0
    return [replace(run, rows=[row for row in run.rows if row["step"] in shared]) for run in runs], len(shared)


def rank_ratio(step: StepReport) -> float:
    """Busiest rank over the mean, measured."""
    return max(step.rank_ms) / max(fmean(step.rank_ms), 1e-9)


def _bars(runs: Sequence[Run]) -> Chart:
    figure = _panels(runs)
    highest = 0.0
    for row, run in enumerate(runs, start=1):
        for rank in range(run.ranks):
            heights = [_mean_of(run, stretch, rank) for stretch in bins(len(run.steps), _COLUMNS)]
            highest = max(highest, *(height for height in heights if height is not None))
            figure.add_bar(
                x=_starts(run),
                y=heights,
                name=f"rank {rank}",
                marker_color=_RANK_COLOURS[rank],
                hovertemplate=f"step %{{x}}, rank {rank}: %{{y:.1f}} ms<extra></extra>",
                row=row,
                col=1,
            )
    figure.update_yaxes(range=[0, highest * 1.05], title_text="ms")
    most = max(run.ranks for run in runs)
    legend = [(f"rank {rank}", colour) for rank, colour in enumerate(_RANK_COLOURS[:most])]
    return as_chart("computing time of each rank in each step", figure, height=70 + 190 * len(runs), legend=legend)


def _heat(runs: Sequence[Run]) -> Chart:
    figure = _panels(runs)
    shares = [[_share_of(run, stretch, rank) for stretch in bins(len(run.steps), _COLUMNS)]
              for run in runs for rank in range(run.ranks)]  # fmt: skip
    highest = max((share for row in shares for share in row if share is not None), default=1.0)
    for row, run in enumerate(runs, start=1):
        figure.add_heatmap(
            x=_starts(run),
            y=list(range(run.ranks)),
            z=[shares.pop(0) for _ in range(run.ranks)],
            zmin=0,
            zmax=highest,
            colorscale=_COLOUR_SCALE,
            showscale=row == 1,
            hovertemplate="step %{x}, rank %{y}: %{z:.2f} of the mean<extra></extra>",
            row=row,
            col=1,
        )
    figure.update_yaxes(title_text="rank")
    return as_chart("computing time of each rank over its step's mean", figure, height=100 + 220 * len(runs))


def _panels(runs: Sequence[Run]) -> Any:
    """One panel a run, in the page's style."""
    style = new_figure().layout
    titles = [plain(f"{run.name}: {median(map(rank_ratio, run.warm)):.2f}") for run in runs]
    figure = make_subplots(
        rows=len(runs), cols=1, shared_xaxes="all", subplot_titles=titles, vertical_spacing=0.26 / len(runs)
    )
    figure.update_layout(template="none", margin=style.margin, font=style.font, barmode="group", showlegend=False)
    figure.update_layout(margin={"t": 32})
    figure.update_xaxes(zeroline=False, automargin=True)
    figure.update_xaxes(title_text="step", row=len(runs), col=1)
    figure.update_yaxes(zeroline=False, automargin=True)
    return figure


def _starts(run: Run) -> list[int]:
    return [run.steps[stretch.start].step for stretch in bins(len(run.steps), _COLUMNS)]


def _mean_of(run: Run, stretch: range, rank: int) -> float | None:
    known = [run.steps[at].rank_ms[rank] for at in stretch if rank < len(run.steps[at].rank_ms)]
    return fmean(known) if known else None


def _share_of(run: Run, stretch: range, rank: int) -> float | None:
    times = [run.steps[at].rank_ms for at in stretch]
    known = [ranks[rank] / max(fmean(ranks), 1e-9) for ranks in times if rank < len(ranks)]
    return fmean(known) if known else None


def _table(runs: Sequence[Run]) -> DataTable:
    """Each rank over the warm steps: its mean time, and how often it was the slowest."""
    rows = []
    for run in runs:
        for rank in range(run.ranks):
            steps = [step for step in run.warm if rank < len(step.rank_ms)]
            if not steps:
                continue
            slowest = sum(step.rank_ms[rank] == max(step.rank_ms) for step in steps) / len(steps)
            share = fmean(step.rank_ms[rank] / max(fmean(step.rank_ms), 1e-9) for step in steps)
            mean = fmean(step.rank_ms[rank] for step in steps)
            rows.append([run.name, str(rank), f"{mean:.1f}", f"{share:.3f}", f"{slowest:.0%}"])
    columns = ["run", "rank", "mean ms", "mean / step's mean", "slowest in"]
    return DataTable(columns=columns, rows=rows, note="The first two steps of a run are left out.")
