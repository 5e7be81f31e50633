"""What every benchmark prints and writes: cases, checks, one JSON form, a dated result file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measured figure.

    Attributes:
        case: what was measured on.
        variant: what was measured.
        unit: of the figures.
        median, min, max: over the repetitions.
        n: repetitions.
    """

    case: str
    variant: str
    unit: str
    median: float
    min: float
    max: float
    n: int

    @staticmethod
    def of(case: str, variant: str, unit: str, values: Sequence[float]) -> Case:
        """Sum up repetitions."""
        low, middle, high = (float(f"{number:.6g}") for number in (min(values), np.median(values), max(values)))
        return Case(case=case, variant=variant, unit=unit, median=middle, min=low, max=high, n=len(values))


@dataclass(frozen=True, kw_only=True)
class Check:
    """A promise and whether it held.

    Attributes:
        what: the promise.
        limit: largest value that keeps it.
        value: as measured.
        ok: value is below the limit.
        timed: the value compares times: the few rounds of a shortened run do not decide it.
    """

    what: str
    limit: float
    value: float
    ok: bool
    timed: bool = False

    @staticmethod
    def below(what: str, value: float, limit: float, *, timed: bool = False) -> Check:
        """A value that must not exceed a limit."""
        return Check(what=what, limit=limit, value=float(f"{value:.6g}"), ok=bool(value <= limit), timed=timed)

    def decides(self, *, quick: bool) -> bool:
        """Whether a failure counts."""
        return not (quick and self.timed)


@dataclass(kw_only=True)
class Report:
    """A benchmark's outcome.

    Attributes:
        name: the script's name.
        quick: a shortened run.
        cases, checks: figures and promises.
        notes: what else to know: peers skipped, conditions.
    """

    name: str
    quick: bool
    cases: list[Case] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def finish(self, *, as_json: bool) -> int:
        """Print, write the dated result of a full run beside the script, and return the exit code."""
        if as_json:
            print(json.dumps(self._json()))
        else:
            self._print()
        if not self.quick:
            path = Path(__file__).with_name(f"{self.name}-{datetime.date.today()}.md")
            path.write_text(self._markdown(), encoding="utf-8")
            print(f"wrote {path.name}", file=sys.stderr)
        return 0 if all(check.ok for check in self.checks if check.decides(quick=self.quick)) else 1

    def _json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "machine": machine(),
            "date": str(datetime.date.today()),
            "commit": commit(),
            "quick": self.quick,
            "cases": [asdict(case) for case in self.cases],
            "checks": [asdict(check) for check in self.checks],
        }

    def _print(self) -> None:
        console = Console()
        figures = Table("case", "variant", "unit", "median", "min", "max", "n", box=box.SIMPLE_HEAD)
        for case in self.cases:
            figures.add_row(*_cells(case))
        console.print(figures)
        promises = Table("check", "value", "limit", "", box=box.SIMPLE_HEAD)
        for check in self.checks:
            failed = "FAILED" if check.decides(quick=self.quick) else "too short a run to tell"
            promises.add_row(check.what, f"{check.value:g}", f"{check.limit:g}", "ok" if check.ok else failed)
        if self.checks:
            console.print(promises)
        for note in self.notes:
            console.print(note, soft_wrap=True)

    def _markdown(self) -> str:
        lines = [
            f"# {self.name}, {datetime.date.today()}",
            "",
            f"`python benchmarks/{self.name}.py` on {machine()}, commit {commit()}.",
            "",
            *(f"- {note}" for note in self.notes),
            *([""] if self.notes else []),
            "| check | value | limit | held |",
            "|---|---|---|---|",
            *(f"| {c.what} | {c.value:g} | {c.limit:g} | {'yes' if c.ok else '**no**'} |" for c in self.checks),
            "",
            "| case | variant | unit | median | min | max | n |",
            "|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(_cells(case))} |" for case in self.cases),
            "",
        ]
        return "\n".join(lines)


def _cells(case: Case) -> tuple[str, ...]:
    numbers = (f"{value:.4g}" for value in (case.median, case.min, case.max))
    return (case.case, case.variant, case.unit, *numbers, str(case.n))


def machine() -> str:
    """Processor, cores and Python, as far as the system tells."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"


def commit() -> str:
    """The checked-out commit, with "+" where files differ from it, or "unknown"."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")
