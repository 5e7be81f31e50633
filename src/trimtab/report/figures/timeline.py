"""What every rank did in one step, phase after phase, as bars; a slider chooses the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trimtab.report.figures.theme import as_chart, colour_of_phase, new_figure, plain
from trimtab.report.figures.thinning import evenly
from trimtab.report.run import Run
from trimtab.report.sections import Chart, DataTable, Frame, Section

_STEPS = 40
_RANKS = 32
_WAITING = " (waiting)"
_BAR = 24


@dataclass(frozen=True)
class _Bar:
    """A rank of a run: one row of the figure."""

    run: Run
    rank: int
    label: str


def timeline(runs: Sequence[Run]) -> Section:
    """The section."""
    bars = [bar for run in runs for bar in _bars(run, alone=len(runs) == 1)]
    steps = _shared_steps(runs)
    shown = [steps[at] for at in evenly(len(steps), _STEPS)]
    typical = median(step.step_ms for step in runs[0].warm)
    by_step = {run.name: {row["step"]: row for row in run.rows} for run in runs}
    first = min(range(len(shown)), key=lambda at: abs(by_step[runs[0].name][shown[at]]["step_ms"] - typical))
    phases = list(dict.fromkeys(phase for run in runs for phase in run.phases))
    frames = [_frame(step, bars, phases, by_step) for step in shown]
    waits = any(_tells_waiting(row) for run in runs for row in run.rows[:1])
    text = ["Wall time of each phase on each rank, in the order phases run. The step ends when the slowest rank does."]
    if waits:
        text.append(
            "Pale: the rank was in that phase but not computing. It waited for other ranks, or another program had the "
            "processor."
        )
    return Section(
        title="Timeline of a step",
        text=text + _left_out(runs, steps, shown),
        charts=[_chart(bars, phases, frames, first)],
        table=_table(bars, phases, frames[first], f"Step {shown[first]}. Milliseconds."),
    )


def _chart(bars: Sequence[_Bar], phases: Sequence[str], frames: list[Frame], first: int) -> Chart:
    figure = new_figure(x="ms", barmode="stack", bargap=0.25)
    labels = [plain(bar.label) for bar in bars]
    for position, phase in enumerate(phases):
        colour = colour_of_phase(phase, position)
        for waiting in (False, True):
            name = phase + _WAITING if waiting else phase
            figure.add_bar(
                x=frames[first].x[2 * position + waiting],
                y=labels,
                orientation="h",
                name=plain(phase),
                marker={"color": colour, "opacity": 0.3 if waiting else 1.0},
                hovertemplate="%{y}: " + plain(name) + " %{x:.1f} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return as_chart(
        "phases of each rank in one step, milliseconds",
        figure,
        height=70 + _BAR * len(bars),
        frames=frames,
        first=first,
        slider="step",
        legend=[(phase, colour_of_phase(phase, position)) for position, phase in enumerate(phases)],
    )


def _bars(run: Run, *, alone: bool) -> list[_Bar]:
    """All ranks, or of many those that were busiest and least busy over the run."""
    ranks = list(range(run.ranks))
    if len(ranks) > _RANKS:
        busy = [sum(step.rank_ms[rank] for step in run.steps if rank < len(step.rank_ms)) for rank in ranks]
        order = sorted(ranks, key=lambda rank: -busy[rank])
        ranks = sorted([*order[: _RANKS // 2], *order[-_RANKS // 2 :]])
    return [_Bar(run, rank, f"rank {rank}" if alone else f"{run.name}, rank {rank}") for rank in ranks]


def _shared_steps(runs: Sequence[Run]) -> list[int]:
    """Steps that all runs have; those of the first where they share none."""
    of_each = [[step.step for step in run.steps] for run in runs]
    shared = set(of_each[0]).intersection(*of_each[1:])
    return [step for step in of_each[0] if step in shared] or of_each[0]


def _frame(
    step: int, bars: Sequence[_Bar], phases: Sequence[str], by_step: dict[str, dict[int, dict[str, Any]]]
) -> Frame:
    x: list[list[float]] = []
    for phase in phases:
        pairs = [_busy_and_waiting(by_step[bar.run.name].get(step), phase, bar.rank) for bar in bars]
        x += [[round(busy, 2) for busy, _ in pairs], [round(waiting, 2) for _, waiting in pairs]]
    return Frame(label=str(step), x=x)


def _busy_and_waiting(row: dict[str, Any] | None, phase: str, rank: int) -> tuple[float, float]:
    wall = _of_rank(row["phases_ms"], phase, rank) if row else None
    if row is None or wall is None:
        return 0.0, 0.0
    busy = _of_rank(_busy_phases(row), phase, rank) if _tells_waiting(row) else None
    return (wall, 0.0) if busy is None else (min(busy, wall), max(0.0, wall - busy))


def _of_rank(phases: dict[str, list[float]], phase: str, rank: int) -> float | None:
    times = phases.get(phase, [])
    return times[rank] if rank < len(times) else None


def _busy_phases(row: dict[str, Any]) -> dict[str, list[float]]:
    return {**(row.get("compute_ms") or {}), **(row.get("phase_rank_ms") or {})}


def _tells_waiting(row: dict[str, Any]) -> bool:
    return bool(_busy_phases(row)) and not row.get("compute_includes_waiting")


def _left_out(runs: Sequence[Run], steps: Sequence[int], shown: Sequence[int]) -> list[str]:
    said = []
    if len(shown) < len(steps):
        said.append(f"{len(shown)} of {len(steps)} steps can be chosen, evenly spread.")
    many = max(run.ranks for run in runs)
    if many > _RANKS:
        said.append(f"Of {many} ranks, the {_RANKS // 2} busiest and the {_RANKS // 2} least busy are shown.")
    return said


def _table(bars: Sequence[_Bar], phases: Sequence[str], frame: Frame, note: str) -> DataTable:
    rows = []
    for row, bar in enumerate(bars):
        cells = []
        for position in range(len(phases)):
            busy, waiting = frame.x[2 * position][row], frame.x[2 * position + 1][row]
            cells.append(f"{busy + waiting:.1f}" if not waiting else f"{busy + waiting:.1f} ({waiting:.1f} waiting)")
        rows.append([bar.label, *cells])
    return DataTable(columns=["", *phases], rows=rows, note=note)
