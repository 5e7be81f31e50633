"""Peak memory of the ranks over a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.report.figures.lines import line_chart, step_table, thinning_note
from trimtab.report.run import Run
from trimtab.report.sections import Section

_GIB = 2.0**30


def memory(runs: Sequence[Run]) -> Section | None:
    """The section; None where no run recorded memory."""
    known = [run for run in runs if any(step.peak_memory_bytes for step in run.steps)]
    if not known:
        return None
    return Section(
        title="Memory",
        text=[
            "Peak memory of the rank that used most, and of the one that used least. On a GPU it is what tensors took "
            "on the device in that step; on a CPU the largest size of the rank's process so far, decode workers apart.",
            *thinning_note(known),
        ],
        charts=[line_chart("peak memory of the fullest rank, GiB", known, _of(max), unit="GiB", from_zero=True)],
        table=step_table(
            known, [("fullest rank, GiB", _of(max), "{:.3f}"), ("emptiest rank, GiB", _of(min), "{:.3f}")]
        ),
    )


def _of(pick: Callable[[list[int]], int]) -> Callable[[Run], list[float | None]]:
    def column(run: Run) -> list[float | None]:
        return [pick(step.peak_memory_bytes) / _GIB if step.peak_memory_bytes else None for step in run.steps]

    return column
