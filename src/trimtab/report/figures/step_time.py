"""Time of each step, and how much of it was waiting for data."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.report.figures.lines import line_chart, step_table, thinning_note
from trimtab.report.run import Run
from trimtab.report.sections import Section


def step_time(runs: Sequence[Run]) -> Section:
    """The section."""
    return Section(
        title="Step time and exposed data time",
        text=[
            "Step time is that of the slowest rank. Exposed data time is how long it waited for data: 0 means loading "
            "was hidden behind computing. Steps differ in size; runs over the same table and seed rise and fall "
            "together.",
            *thinning_note(runs),
        ],
        charts=[
            line_chart("step time, ms", runs, step_ms, unit="ms", from_zero=True),
            line_chart("exposed data time, ms", runs, exposed_data_ms, unit="ms", from_zero=True),
        ],
        table=step_table(
            runs,
            [
                ("step ms", step_ms, "{:.1f}"),
                ("exposed data ms", exposed_data_ms, "{:.1f}"),
                ("planning ms", lambda run: [step.planning_ms for step in run.steps], "{:.2f}"),
                ("tokens / s", lambda run: [s.tokens / max(s.step_ms, 1e-9) * 1e3 for s in run.steps], "{:.0f}"),
                ("bytes moved", lambda run: [step.moved_bytes for step in run.steps], "{:.0f}"),
            ],
        ),
    )


def step_ms(run: Run) -> list[float]:
    """Milliseconds of each step."""
    return [step.step_ms for step in run.steps]


def exposed_data_ms(run: Run) -> list[float]:
    """Milliseconds of each step in which the slowest rank waited for data."""
    return [step.exposed_data_ms for step in run.steps]
