"""Shows runs side by side, or what a command printed with --json: a page that works offline, and tables here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rich.console import Console

from trimtab.report.build import build_report
from trimtab.report.html_page import write_page
from trimtab.report.run_comparison import refresh_summary
from trimtab.report.terminal import print_groups
from trimtab.schema.output_file import check_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source",
        type=Path,
        nargs="+",
        metavar="RUN|FILE.json",
        help="folder of a run or of its variants, such as runs/demo; or what a command printed with --json. "
        "Several folders are shown side by side",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="page to write (default: report.html in the first RUN)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")


def _records(source: Path) -> Iterator[Path]:
    """The file, or what a run's folder keeps its figures in."""
    yield source
    for pattern in ("*.json*", "*.yaml"):
        yield from source.rglob(pattern)


def run(args: argparse.Namespace) -> int:
    """Read, write the page, show.

    Raises:
        TrimtabError: a source is no run and no output of a command, or the page cannot be written.
    """
    if args.out:
        check_writable(args.out, read=[file for source in args.source for file in _records(source)])
    report = build_report(args.source)
    page = args.out or report.default_page
    summaries = [path for path in map(refresh_summary, args.source) if path]
    write_page(page, report.title, report.groups, written=datetime.now())
    if args.json:
        print(json.dumps({**report.to_json(), "report": str(page)}, allow_nan=False))
        return 0
    console = Console()
    print_groups(report.groups, console)
    for summary in summaries:
        console.print(f"all figures: {summary}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
    return 0
