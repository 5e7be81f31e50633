"""A run as its folder tells it: steps, settings, results, and what was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import MetadataError
from trimtab.report.json_file import read_json_object, read_text
from trimtab.report.run_records import STEPS, as_report, read_rows
from trimtab.schema.reports import StepReport

WARM_UP_STEPS = 2
_DEEPEST = 3


@dataclass(frozen=True)
class LeftOut:
    """A sample that was not trained on.

    Attributes:
        sample_id: its name.
        reason: why.
        step: where it carried no loss; None where it was left out before the run began.
        replacement: id of the sample that joined a later step in its place, and that step; "" where none did.
    """

    sample_id: str
    reason: str
    step: int | None = None
    replacement: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        name: what it is called on the page.
        folder: where it lies.
        rows: ``steps.jsonl``, everything recorded.
        settings: ``config.yaml`` by dotted name; empty where there is none.
        evaluation: ``evaluation.json``, or None.
        left_out: samples replaced while it ran, and those no pack could hold.
    """

    name: str
    folder: Path
    rows: list[dict[str, Any]]
    settings: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    left_out: list[LeftOut] = field(default_factory=list)

    @cached_property
    def steps(self) -> list[StepReport]:
        """The rows as far as every run has them."""
        return [as_report(row) for row in self.rows]

    @cached_property
    def warm(self) -> list[StepReport]:
        """Steps without the first two, in which processes warm up; all of a run that has no others."""
        return [step for step in self.steps if step.step >= WARM_UP_STEPS] or self.steps

    @property
    def phases(self) -> list[str]:
        """Phases in the order they run."""
        return list(self.steps[0].phases_ms)

    @property
    def ranks(self) -> int:
        """Most ranks the run had; a resumed one may have had fewer at times."""
        return max(len(step.rank_ms) for step in self.steps)

    def column(self, name: str) -> list[float | None]:
        """A figure of every step that only some runs record, such as ``reward_mean``; None where it is missing."""
        values = [row.get(name) for row in self.rows]
        return [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]


def find_runs(folder: Path) -> list[Path]:
    """Folders of runs in ``folder``: itself, or up to three levels below.

    Raises:
        MetadataError: there is none.
    """
    if not folder.exists():
        raise MetadataError(f"{folder}: not found; give a run's folder such as runs/mine, or a FILE.json")
    if (folder / STEPS).is_file():
        return [folder]
    found = [path.parent for depth in range(1, _DEEPEST + 1) for path in folder.glob("*/" * depth + STEPS)]
    if not found:
        raise MetadataError(f"{folder}: holds no run, that is no folder with {STEPS}; give one such as runs/mine")
    return sorted(found)


def read_run(folder: Path, name: str) -> Run:
    """Read a run's folder.

    Raises:
        MetadataError: a file of it is broken.
    """
    evaluation = folder / "evaluation.json"
    return Run(
        name=name,
        folder=folder,
        rows=read_rows(folder),
        settings=_settings(folder / "config.yaml"),
        evaluation=read_json_object(evaluation) if evaluation.is_file() else None,
        left_out=[*_left_out(folder / "bad_samples.json"), *_left_out(folder / "left_out.json")],
    )


def _settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError) as error:
        raise MetadataError(f"{path}: is no YAML ({' '.join(str(error).split())}); remove or mend it") from error
    if not isinstance(content, dict):
        raise MetadataError(f"{path}: holds no settings by name; remove or mend it")
    return dict(_flat(content, ""))


def _flat(values: dict[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def _left_out(path: Path) -> Sequence[LeftOut]:
    if not path.is_file():
        return []
    try:
        rows = json.loads(read_text(path))
        return [LeftOut(str(row["sample_id"]), str(row["reason"]), row.get("step"), _replacement(row)) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MetadataError(f"{path}: does not list samples with their reasons ({error}); remove it") from error


def _replacement(row: dict[str, Any]) -> str:
    return f"{row['replacement']}, step {row['joins_step']}" if "replacement" in row else ""
