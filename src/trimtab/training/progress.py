"""What the person watching a run sees: a live line and a row a step."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trimtab.schema.reports import StepReport

_HEADER = (
    "  step     loss   tokens/s   step ms   data ms   ratio before > after   bound   vision  exchange  language  optim"
)


class RunProgress:
    """Prints on standard error; silent on every rank but the first."""

    def __init__(self, title: str, *, first_step: int, steps: int, quiet: bool) -> None:
        """Show ``steps`` steps of which ``first_step`` are done."""
        console = Console(stderr=True, quiet=quiet)
        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=quiet,
        )
        self._task = self._progress.add_task(title, total=steps, completed=first_step, state="starting")
        self._rows = 0

    def __enter__(self) -> Self:
        """Start the live line."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the live line."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """One line above the live line."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def step(self, report: StepReport) -> None:
        """One row for a step, with a header every twenty."""
        if self._rows % 20 == 0:
            self.say(_HEADER)
        self._rows += 1
        self.say(step_row(report))
        state = f"loss {report.loss:.3f}" if report.grad_norm is not None else "step skipped: gradient not finite"
        self._progress.update(self._task, completed=report.step + 1, state=state)


def step_row(report: StepReport) -> str:
    """One fixed-width line: times are those of the slowest rank, in milliseconds."""
    phases = {name: max(times) for name, times in report.phases_ms.items()}
    skipped = "" if report.grad_norm is not None else "  skipped: gradient not finite"
    bad = f"  bad: {', '.join(report.bad_samples)}" if report.bad_samples else ""
    return (
        f"{report.step:6d} {report.loss:8.4f} {report.tokens / max(report.step_ms, 1e-9) * 1e3:10.0f}"
        f" {report.step_ms:9.0f} {report.exposed_data_ms:9.1f}"
        f" {report.step_ratio_before:12.3f} > {report.step_ratio:5.3f} {report.bound_ratio:7.3f}"
        f" {phases['vision']:8.0f} {phases['exchange']:9.0f} {phases['language']:9.0f} {phases['optimizer']:6.0f}"
        f"{skipped}{bad}"
    )
