"""Compares the balanced and baseline runs of a name: a table, summary.json, and a plot of time per rank."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from trimtab.report.comparison_table import comparison_table
from trimtab.report.run_comparison import PLOT, SUMMARY, compare_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run's variants, such as runs/demo")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Compare and show.

    Raises:
        TrimtabError: a run is missing, or the runs cannot be compared.
    """
    comparison, summary = compare_runs(args.run)
    if args.json:
        print(json.dumps(summary))
        return 0
    console = Console()
    console.print(comparison_table(comparison))
    console.print(f"time of each rank: {args.run / PLOT}", soft_wrap=True)
    console.print(f"all figures: {args.run / SUMMARY}", soft_wrap=True)
    return 0
