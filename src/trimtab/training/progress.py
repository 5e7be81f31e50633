"""What the person watching a run sees: a live line and a row a step."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trimtab.schema.reports import StepReport

_HEADER = (
    "  step     loss   tokens/s   step ms   data ms   ratio before > after   bound   vision  exchange  language  optim"
)


class RunProgress:
    """Prints on standard error; silent on every rank but the first."""

    def __init__(self, title: str, *, first_step: int, steps: int, quiet: bool) -> None:
        """Show ``steps`` steps of which ``first_step`` are done."""
        self._console = Console(stderr=True, quiet=quiet)
        self._title, self._steps, self._quiet = title, steps, quiet
        self._done = first_step
        self._live: tuple[Progress, TaskID] | None = None
        self._rows = 0

    def __enter__(self) -> Self:
        """Start the live line; may be entered again."""
        columns = (TextColumn(self._title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        state = (TimeRemainingColumn(), TextColumn("{task.fields[state]}"))
        live = Progress(*columns, *state, console=self._console, disable=self._quiet, transient=True)
        self._live = (live, live.add_task(self._title, total=self._steps, completed=self._done, state="starting"))
        live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the live line."""
        if self._live:
            self._live[0].stop()
        self._live = None

    def say(self, text: str) -> None:
        """One line above the live line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def step(self, report: StepReport) -> None:
        """One row for a step, with a header every twenty."""
        if self._rows % 20 == 0:
            self.say(f"{self._title}\n{_HEADER}")
        self._rows += 1
        self.say(step_row(report))
        state = skipped_because(report) or f"loss {report.loss:.3f}"
        self._done = report.step + 1
        if self._live:
            live, task = self._live
            live.update(task, completed=self._done, state=state)


def skipped_because(report: StepReport) -> str:
    """Why no weight was updated; "" where they were."""
    if report.grad_norm is not None:
        return ""
    return "skipped: gradient not finite" if report.loss_tokens else "skipped: nothing to learn from was loaded"


def step_row(report: StepReport) -> str:
    """One fixed-width line: times are those of the slowest rank, in milliseconds."""
    phases = {name: max(times) for name, times in report.phases_ms.items()}
    why = skipped_because(report)
    skipped = f"  {why}" if why else ""
    bad = f"  bad: {', '.join(report.bad_samples)}" if report.bad_samples else ""
    return (
        f"{report.step:6d} {report.loss:8.4f} {report.tokens / max(report.step_ms, 1e-9) * 1e3:10.0f}"
        f" {report.step_ms:9.0f} {report.exposed_data_ms:9.1f}"
        f" {report.step_ratio_before:12.3f} > {report.step_ratio:5.3f} {report.bound_ratio:7.3f}"
        f" {phases['vision']:8.0f} {phases['exchange']:9.0f} {phases['language']:9.0f} {phases['optimizer']:6.0f}"
        f"{skipped}{bad}"
    )
