"""Compares the balanced and baseline runs of one name and writes what was found beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.report.comparison import Comparison, compare
from trimtab.report.rank_time_plot import write_rank_time_plot
from trimtab.report.run_records import read_steps

SUMMARY, PLOT = "summary.json", "rank_time.html"


def compare_runs(folder: Path, extra: dict[str, Any] | None = None) -> tuple[Comparison, dict[str, Any]]:
    """Compare ``folder/balanced`` with ``folder/baseline``; writes ``summary.json`` and ``rank_time.html`` there.

    Args:
        folder: a run's folder, such as ``runs/demo``.
        extra: added to the summary.

    Returns:
        The comparison, and what ``summary.json`` holds.

    Raises:
        MetadataError: a run is missing or the two share no steps.
        SettingsError: plotly is not installed.
    """
    balanced, baseline = (read_steps(_variant(folder, name)) for name in ("balanced", "baseline"))
    comparison = compare(balanced, baseline)
    summary = {**comparison.to_json(), **(extra or {})}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    compared = set(comparison.steps)
    write_rank_time_plot(
        folder / PLOT,
        balanced=[report for report in balanced if report.step in compared],
        baseline=[report for report in baseline if report.step in compared],
    )
    return comparison, summary


def _variant(folder: Path, name: str) -> Path:
    if not (folder / name).is_dir():
        switch = "balance.mode=off loader.mode=central" if name == "baseline" else "balance.mode=on"
        raise MetadataError(f"{folder}: has no {name} run; train one with {switch} and name={folder.name}")
    return folder / name
