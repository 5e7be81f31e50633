"""A page of a paper's tables beside ours: Markdown in full runs, the benchmarks' JSON always."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Case, Check, Report, commit


@dataclass(kw_only=True)
class Page:
    """A page in the making.

    Attributes:
        name: of the script.
        title: of the page.
        quick: a shortened run that writes nothing.
        lines: Markdown so far.
        cases, checks: for JSON and the terminal.
    """

    name: str
    title: str
    quick: bool
    lines: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def section(self, heading: str, *paragraphs: str) -> None:
        """Begin a section."""
        self.lines += [f"## {heading}", ""]
        self.text(*paragraphs)

    def text(self, *paragraphs: str) -> None:
        """Add paragraphs."""
        for paragraph in paragraphs:
            self.lines += [paragraph, ""]

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        self.lines += [_row(headings), _row(["---"] * len(headings)), *(_row(row) for row in rows), ""]

    def figure(self, case: str, variant: str, unit: str, value: float) -> None:
        """Add a figure to the JSON."""
        self.cases.append(Case.of(case, variant, unit, [value]))

    def orders(self, what: str, slower: float, faster: float) -> None:
        """Check that the paper's order comes out: ``faster`` is below ``slower``."""
        self.checks.append(Check.below(what, faster / slower, 1.0))

    def finish(self, *, as_json: bool) -> int:
        """Print, write the page of a full run, and return the exit code."""
        report = Report(name=f"papers/{self.name}", quick=True, cases=self.cases, checks=self.checks)
        code = report.finish(as_json=as_json)
        if not self.quick:
            path = Path(__file__).with_name(f"{self.name}-{datetime.date.today()}.md")
            head = [f"# {self.title}", "", f"`python benchmarks/papers/{self.name}.py`, commit {commit()}.", ""]
            path.write_text("\n".join([*head, *self.lines]).rstrip() + "\n", encoding="utf-8")
            print(f"wrote {path.name}", file=sys.stderr)
        return code


def arguments(description: str | None) -> argparse.Namespace:
    """``--quick`` and ``--json``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer steps, no sensitivity; writes nothing")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
