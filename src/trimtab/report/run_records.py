"""Reads the step records of a run."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.schema.reports import StepReport

_FIELDS = {field.name for field in fields(StepReport)}


def read_steps(folder: Path) -> list[StepReport]:
    """The steps in ``folder/steps.jsonl``, in order.

    Raises:
        MetadataError: the file is missing, empty, or a line is no step record.
    """
    path = folder / "steps.jsonl"
    if not path.is_file():
        raise MetadataError(f"{path}: not found; give the folder of a run, such as runs/demo/balanced")
    steps = [_step(path, number, line) for number, line in enumerate(path.read_text().splitlines(), start=1)]
    if not steps:
        raise MetadataError(f"{path}: no step was recorded; train at least one step")
    return steps


def _step(path: Path, number: int, line: str) -> StepReport:
    try:
        record: Any = json.loads(line)
        return StepReport(**{name: value for name, value in record.items() if name in _FIELDS})
    except (ValueError, TypeError, AttributeError) as error:
        raise MetadataError(f"{path}:{number}: not a step record ({error}); remove the line") from error
