"""Compares the balanced and baseline runs of one name and writes what was found beside them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.report.comparison import Comparison, compare
from trimtab.report.json_file import read_json_object
from trimtab.report.run_records import STEPS, read_steps

SUMMARY = "summary.json"

_VARIANTS = ("balanced", "baseline")


def compare_runs(folder: Path, extra: dict[str, Any] | None = None) -> tuple[Comparison, dict[str, Any]]:
    """Compare ``folder/balanced`` with ``folder/baseline``; writes ``summary.json`` there.

    Args:
        folder: a run's folder, such as ``runs/demo``.
        extra: added to the summary.

    Returns:
        The comparison, and what ``summary.json`` holds.

    Raises:
        MetadataError: a run is missing or the two share no steps.
    """
    balanced, baseline = (read_steps(_variant(folder, name)) for name in _VARIANTS)
    comparison = compare(balanced, baseline)
    summary = {**comparison.to_json(), **(extra or {})}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    return comparison, summary


def refresh_summary(folder: Path) -> Path | None:
    """Write ``summary.json`` where the folder holds both runs and they share steps.

    One that holds more, such as the demo's, is left as it is.

    Returns:
        The file, or None where there is none.
    """
    path = folder / SUMMARY
    if path.is_file() and not read_json_object(path).keys() <= {field.name for field in fields(Comparison)}:
        return path
    if not all((folder / name / STEPS).is_file() for name in _VARIANTS):
        return None
    try:
        compare_runs(folder)
    except MetadataError:  # the report says why the runs cannot be paired
        return path if path.is_file() else None
    return path


def _variant(folder: Path, name: str) -> Path:
    if not (folder / name).is_dir():
        switch = "balance.mode=off loader.mode=central" if name == "baseline" else "balance.mode=on"
        raise MetadataError(f"{folder}: has no {name} run; train one with {switch} and name={folder.name}")
    return folder / name
