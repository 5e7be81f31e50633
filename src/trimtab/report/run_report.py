"""The report of a folder of runs, written beside them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from trimtab.report.build import build_report
from trimtab.report.html_page import write_page


def write_run_report(folder: Path) -> Path:
    """Write ``report.html`` of all runs in a folder; returns its path.

    Raises:
        MetadataError: the folder holds no run, or one is broken.
        SettingsError: the page cannot be written.
    """
    report = build_report([folder])
    write_page(report.default_page, report.title, report.groups, written=datetime.now())
    return report.default_page
