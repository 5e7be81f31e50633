"""Reads the step records of a run, and refuses what cannot be one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.report.json_file import read_text
from trimtab.schema.json_kind import json_kind
from trimtab.schema.reports import StepReport

STEPS = "steps.jsonl"

_FIELDS = {field.name for field in fields(StepReport)}
_NEEDED = [f.name for f in fields(StepReport) if f.default is MISSING and f.default_factory is MISSING]
_MAY_NOT_BE_FINITE = ("loss", "grad_norm", "reward_mean", "reward_std", "kl", "clip_fraction")
"""A run that diverged records these as they were; times, counts and ratios are finite always."""
_OR_NONE = ("grad_norm", "observed_step_ratio")
_OF_RANKS = ("rank_ms", "predicted_rank_ms", "decoded", "peak_memory_bytes")
_OF_PHASES = ("phases_ms", "compute_ms", "phase_rank_ms")


def read_steps(folder: Path) -> list[StepReport]:
    """The steps in ``folder/steps.jsonl``, in order.

    Raises:
        MetadataError: the file is missing, empty, or a line is no step record.
    """
    return [as_report(row) for row in read_rows(folder)]


def as_report(row: dict[str, Any]) -> StepReport:
    """A row without what ``StepReport`` does not know."""
    return StepReport(**{name: value for name, value in row.items() if name in _FIELDS})


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``folder/steps.jsonl`` with everything recorded, in order of their steps.

    Raises:
        MetadataError: the file is missing, empty, or a line is no step record.
    """
    path = folder / STEPS
    if not path.is_file():
        raise MetadataError(f"{path}: not found; give the folder of a run, such as runs/demo/balanced")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        where = f"{path}:{number}"
        rows.append(_row(where, line))
        _check_follows(where, rows)
    if not rows:
        raise MetadataError(f"{path}: no step was recorded; train at least one step")
    return rows


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _broken(where, str(error)) from error
    if not isinstance(row, dict):
        raise _broken(where, f"holds {json_kind(row)}, not an object")
    missing = [name for name in _NEEDED if name not in row]
    if missing:
        raise _broken(where, f"has no {missing[0]}")
    for problem in _problems(row):
        raise _broken(where, problem)
    return row


def _broken(where: str, problem: str) -> MetadataError:
    return MetadataError(f"{where}: not a step record ({problem}); remove the line")


def _problems(row: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a row's values."""
    ranks = len(row["rank_ms"]) if isinstance(row["rank_ms"], list) else 0
    if ranks == 0:
        yield f"rank_ms={row['rank_ms']!r} must list a time for each rank"
    if type(row["step"]) is not int or row["step"] < 0:
        yield f"step={row['step']!r} must be a whole number from 0"
    for name, value in row.items():
        if name in _OF_RANKS and value:
            yield from _rank_problems(name, value, ranks)
        elif name in _OF_PHASES:
            yield from _phase_problems(name, value, ranks)
        elif isinstance(value, float) and not math.isfinite(value) and name not in _MAY_NOT_BE_FINITE:
            yield f"{name}={value} must be finite"
    for name in _NEEDED:
        if name in (*_OF_RANKS, *_OF_PHASES) or (name in _OR_NONE and row[name] is None):
            continue
        if not _is_number(row[name]):
            yield f"{name}={row[name]!r} must be a number"
    names = row.get("bad_samples", [])
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        yield f"bad_samples={names!r} must list sample ids"


def _phase_problems(name: str, value: Any, ranks: int) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name}={value!r} must hold a list for each phase"
        return
    for phase, times in value.items():
        yield from _rank_problems(f"{name}.{phase}", times, ranks)


def _rank_problems(name: str, value: Any, ranks: int) -> Iterator[str]:
    if not isinstance(value, list) or len(value) != ranks:
        yield f"{name} must have {ranks} entries, one a rank, as rank_ms has"
    elif not all(_is_number(one) and math.isfinite(one) for one in value):
        yield f"{name}={value} must be finite numbers"


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)


def _check_follows(where: str, rows: list[dict[str, Any]]) -> None:
    """Steps ascend, on the same ranks and with the same phases throughout."""
    if len(rows) < 2:
        return
    before, row = rows[-2:]
    if row["step"] <= before["step"]:
        raise MetadataError(f"{where}: step {row['step']} follows step {before['step']}; keep one run in a file")
    if row["phases_ms"].keys() != before["phases_ms"].keys():
        raise MetadataError(f"{where}: has other phases than the step before; keep one run in a file")
