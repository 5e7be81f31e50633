"""How even each step's plan was, how much a better one could win, and what explains it."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.report.figures.lines import Column, line_chart, step_table, thinning_note
from trimtab.report.figures.rank_time import rank_ratio
from trimtab.report.run import Run
from trimtab.report.sections import Section


def ratios(runs: Sequence[Run]) -> Section:
    """The section."""
    columns = _columns(runs)
    charted = {"step ratio", "bound ratio", "measured rank ratio", "as the samples came"}
    return Section(
        title="Ratios and bound",
        text=[
            "Step ratio: predicted step time over that of perfectly even work; 1 is the least. Bound ratio: the same "
            "over a proven lower bound; where it is near 1, no plan of the same kind does better. The measured rank "
            "ratio is the busiest rank's computing time over the mean.",
            *thinning_note(runs),
        ],
        charts=[line_chart(heading, runs, column) for heading, column, _ in columns if heading in charted],
        table=step_table(runs, columns),
    )


def _columns(runs: Sequence[Run]) -> list[tuple[str, Column, str]]:
    columns: list[tuple[str, Column, str]] = [
        ("step ratio", lambda run: [step.step_ratio for step in run.steps], "{:.3f}"),
        ("bound ratio", lambda run: [step.bound_ratio for step in run.steps], "{:.3f}"),
        ("measured rank ratio", lambda run: [rank_ratio(step) for step in run.steps], "{:.3f}"),
        ("as the samples came", lambda run: [step.step_ratio_before for step in run.steps], "{:.3f}"),
        ("vision", lambda run: [step.vision_ratio for step in run.steps], "{:.3f}"),
        ("tokens", lambda run: [step.token_ratio for step in run.steps], "{:.3f}"),
    ]
    if any(step.observed_step_ratio is not None for run in runs for step in run.steps):
        columns.append(("balance would have had", lambda run: [s.observed_step_ratio for s in run.steps], "{:.3f}"))
    return columns
