"""Draws a small dataset of images and videos, trains a small model on it balanced and not, and compares."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="results go to RUNS/demo (default: runs)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together (default: 2)")
    parser.add_argument("--steps", type=int, help="optimizer steps of the balanced run (default: the demo's own)")
    parser.add_argument("--baseline-steps", type=int, default=40, help="steps of the baseline stretch (default: 40)")
    parser.add_argument("--grpo", action="store_true", help="reinforcement instead, after a short supervised start")
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and sampling of --grpo (default: 0)")
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
    summary = _run_grpo(args) if args.grpo else _run_supervised(args)
    if args.json:
        print(json.dumps(summary))
    return 0


def _run_supervised(args: argparse.Namespace) -> dict[str, Any]:
    from trimtab.demo.run import DemoOptions, run_demo

    options = DemoOptions(runs=args.runs, ranks=args.ranks, steps=args.steps, baseline_steps=args.baseline_steps)
    return run_demo(options, quiet=args.json)


def _run_grpo(args: argparse.Namespace) -> dict[str, Any]:
    from trimtab.demo.grpo_settings import GRPODemoSettings
    from trimtab.demo.run_grpo import GRPODemoOptions, run_grpo_demo

    numbers = GRPODemoSettings(seed=args.seed)
    numbers = replace(numbers, steps=args.steps or numbers.steps)
    return run_grpo_demo(GRPODemoOptions(runs=args.runs, ranks=args.ranks, settings=numbers), quiet=args.json)
