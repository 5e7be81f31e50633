"""What `trimtab simulate --json` prints: a step on a described cluster, by strategy. Simulated, and said to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.figure import figure
from trimtab.report.documents.overflow import overflow_lines
from trimtab.report.documents.rest import number, rest
from trimtab.report.documents.simulate_sweep import sweep_sections
from trimtab.report.documents.step_tokens import hold_different
from trimtab.report.figures.theme import colour_of_phase
from trimtab.report.sections import Chart, DataTable, Section

_UNEVEN = "Steps hold different tokens, so bars are of the time for 1,000 tokens."
_TOLD = {
    "simulated",
    "scenario",
    "strategies",
    "sweep",
    "without_effect",
    "not_recommended",
    "recommended",
    "left_out",
}
_OF_JOB = ("task", "model", "data", "cluster", "ranks", "batch_size")


def simulate_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    rows = document["strategies"]
    phases = list(dict.fromkeys(phase for row in rows for phase in row["phases"]))
    uneven = hold_different(rows)
    series = {
        phase: (
            [float(row["phases"].get(phase) or 0.0) / _thousands(row, uneven) for row in rows],
            colour_of_phase(phase, position),
        )
        for position, phase in enumerate(phases)
    }
    crowded = {at for at, row in enumerate(rows) if row["out_of_memory"]}
    overflows = overflow_lines(rows)
    left_out = [f"{name} was left out: {reason}." for name, reason in (document.get("left_out") or {}).items()]
    chart = _chart([str(row["name"]) for row in rows], series, uneven, crowded)
    return [
        Section(
            title="Strategies (simulated)",
            text=[
                f"Scenario {document['scenario']}{_job(document)}. Every figure is simulated: nothing was run.",
                *([_UNEVEN] if uneven else []),
                *left_out,
                *overflows,
                *(["Times of a strategy that does not fit are those of enough memory."] if overflows else []),
            ],
            charts=[chart],
            table=_table(rows, phases),
            headline=True,
        ),
        *sweep_sections(document),
        *rest(document, _TOLD),
    ]


def _thousands(row: dict[str, Any], uneven: bool) -> float:
    """Thousands of tokens of its step, where steps hold different ones."""
    return figure(row, "tokens_per_step", _named(row)) / 1e3 if uneven else 1.0


def _speed(row: dict[str, Any]) -> float:
    return figure(row, "tokens_per_gpu_s", _named(row))


def _named(row: dict[str, Any]) -> str:
    return f"strategy {row['name']!r}"


def _chart(
    names: list[str], series: Mapping[str, tuple[Sequence[float | None], str]], uneven: bool, crowded: Set[int]
) -> Chart:
    what, unit = ("1,000 tokens", "ms / 1,000 tokens") if uneven else ("a step", "ms")
    title = f"simulated time of {what} by phase"
    return bar_chart(title, names, series, unit=f"{unit}, simulated", stacked=True, crowded=crowded)


def _job(document: dict[str, Any]) -> str:
    """What was simulated, in short; all settings follow at the end."""
    settings = document.get("settings") or {}
    named = [f"{name} {number(settings[name])}" for name in _OF_JOB if name in settings]
    return f": {', '.join(named)}" if named else ""


def _table(rows: list[dict[str, Any]], phases: list[str]) -> DataTable:
    most = max(map(_speed, rows), default=0.0)
    cells = []
    for row in rows:
        times = [number(row["phases"].get(phase)) for phase in phases]
        whose, speed = _named(row), _speed(row)
        fits = "does not fit" if row["out_of_memory"] else "fits"
        figures = [number(figure(row, "step_ms", whose)), f"{most / max(speed, 1e-9):.2f}x"]
        figures += [*times, number(speed), number(figure(row, "attention_ratio", whose)), fits]
        cells.append([str(row["name"]), *figures])
    columns = [
        "strategy",
        "step ms",
        "time a token, to fastest",
        *phases,
        "tokens / GPU s",
        "attention ratio",
        "memory",
    ]
    return DataTable(columns=columns, rows=cells, note="Simulated.")
