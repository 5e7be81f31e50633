"""Trains a small model on generated images and videos, supervised and by GRPO, balanced and not, and compares."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.errors import SettingsError

PARTS = ("all", "sft", "grpo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--part", choices=PARTS, default="all", help="what to train (default: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="results go to RUNS/demo (default: runs)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together (default: 2)")
    parser.add_argument(
        "--steps",
        type=int,
        help="steps of the balanced supervised run, and most of the others (default: the demo's own)",
    )
    parser.add_argument("--baseline-steps", type=int, default=40, help="steps of the supervised baseline (default: 40)")
    parser.add_argument(
        "--grpo-steps", type=int, help="steps of reinforcement (default: the demo's own, at most --steps)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and sampling (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Raises:
        TrimtabError: a number is out of range, or a part of the demo failed.
    """
    for name in ("ranks", "steps", "baseline_steps", "grpo_steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingsError(f"--{name.replace('_', '-')} {value} must be at least 1")
    from trimtab.report.run_report import write_run_report

    summary = _run(args)
    page = write_run_report(args.runs / "demo")
    if args.json:
        print(json.dumps(summary))
    else:
        if args.steps or args.grpo_steps:
            Console().print("shortened: so few steps teach and time little; leave out --steps for figures to go by")
        Console().print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
    return 0


def _run(args: argparse.Namespace) -> dict[str, Any]:
    from trimtab.demo.grpo_settings import GRPODemoSettings
    from trimtab.demo.run import DemoOptions, run_demo
    from trimtab.demo.run_all import run_whole_demo
    from trimtab.demo.run_grpo import GRPODemoOptions, run_grpo_demo
    from trimtab.demo.settings import DemoSettings

    supervised = DemoOptions(
        runs=args.runs,
        ranks=args.ranks,
        steps=args.steps,
        baseline_steps=args.baseline_steps,
        settings=DemoSettings(seed=args.seed),
    )
    numbers = GRPODemoSettings(seed=args.seed)
    numbers = numbers.at_most(args.steps) if args.steps else numbers
    numbers = replace(numbers, steps=args.grpo_steps or numbers.steps)
    grpo = GRPODemoOptions(runs=args.runs, ranks=args.ranks, settings=numbers)
    if args.part == "sft":
        return run_demo(supervised, quiet=args.json)
    if args.part == "grpo":
        return run_grpo_demo(grpo, quiet=args.json)
    return run_whole_demo(supervised, grpo, quiet=args.json)
