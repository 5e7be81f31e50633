"""Draws a small dataset of images and videos, trains a small model on it balanced and not, and compares."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trimtab.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="results go to RUNS/demo (default: runs)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together (default: 2)")
    parser.add_argument("--steps", type=int, help="optimizer steps of the balanced run (default: the demo's own)")
    parser.add_argument("--baseline-steps", type=int, default=40, help="steps of the baseline stretch (default: 40)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Raises:
        TrimtabError: a number is out of range, or a part of the demo failed.
    """
    for name in ("ranks", "steps", "baseline_steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingsError(f"--{name.replace('_', '-')} {value} must be at least 1")
    from trimtab.demo.run import DemoOptions, run_demo

    options = DemoOptions(runs=args.runs, ranks=args.ranks, steps=args.steps, baseline_steps=args.baseline_steps)
    summary = run_demo(options, quiet=args.json)
    if args.json:
        print(json.dumps(summary))
    return 0
