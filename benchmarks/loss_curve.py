"""Loss of every step of the demo with balance on and off: the same samples, so the same curve within rounding.

    python benchmarks/loss_curve.py [--quick] [--json] [--ranks 2] [--dtype float32] [--plot FILE.html]

Both runs take turns and start from equal weights. In float32 sums are rounded in another order on every placement, and
training carries such differences on; in float64 they stay below 1e-9 (`--dtype float64`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import plotly.graph_objects as go

from harness import Case, Check, Report
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DemoSettings
from trimtab.training.by_turns import ByTurns, train_by_turns
from trimtab.training.launch import launch
from trimtab.training.settings import BalanceSettings, EvalSettings, SFTSettings

STEPS, QUICK_STEPS = 50, 4
LIMITS = {"float32": 2e-2, "float64": 1e-9}
"""Largest |difference| of a step's loss, of losses that start at 6."""


def main() -> int:
    """Prepare the demo's data, train in both modes, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", choices=sorted(LIMITS), default="float32")
    parser.add_argument("--plot", type=Path, metavar="FILE.html", help="draw both curves")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = QUICK_STEPS if args.quick else STEPS
        turns = settings_of(Path(folder), args.ranks, steps, args.dtype, quick=args.quick)
        if launch(train_by_turns, turns) != 0:
            print("stopped", file=sys.stderr)
            return 1
        on, off = losses(turns.main), losses(turns.other)
    if args.plot:
        draw(on, off, args.plot)
    return report_of(on, off, args.dtype, quick=args.quick).finish(as_json=args.json)


def settings_of(folder: Path, ranks: int, steps: int, dtype: Literal["float32"], *, quick: bool) -> ByTurns:
    """Balanced, and the same without."""
    demo = DemoSettings(train=60 if quick else 12 * steps, held_out=10)
    options = DemoOptions(runs=folder, ranks=ranks, settings=demo, steps=steps)
    balanced = replace(training_settings(options, *prepare(options)), dtype=dtype, evaluation=EvalSettings())
    return ByTurns(main=balanced, other=replace(balanced, balance=BalanceSettings(mode="off")))


def losses(settings: SFTSettings) -> list[float]:
    """Of every step."""
    return [json.loads(line)["loss"] for line in (settings.folder / "steps.jsonl").read_text().splitlines()]


def report_of(on: list[float], off: list[float], dtype: str, *, quick: bool) -> Report:
    """Losses, and how far they are apart."""
    report = Report(name="loss_curve", quick=quick)
    apart = [abs(a - b) for a, b in zip(on, off, strict=True)]
    report.cases.append(Case.of(f"loss, {dtype}", "balance on", "nats", on))
    report.cases.append(Case.of(f"loss, {dtype}", "balance off", "nats", off))
    report.cases.append(Case.of(f"difference of a step, {dtype}", "on, off", "nats", apart))
    report.checks.append(Check.below(f"largest difference of a step's loss, {dtype}", max(apart), LIMITS[dtype]))
    return report


def draw(on: list[float], off: list[float], path: Path) -> None:
    """Both curves, one dotted on the other, so that a difference shows."""
    figure = go.Figure()
    figure.add_scatter(y=off, name="balance off", line={"color": "#d97706", "width": 5})
    figure.add_scatter(y=on, name="balance on", line={"color": "#1e3a8a", "width": 2, "dash": "dot"})
    figure.update_layout(xaxis_title="step", yaxis_title="loss", template="plotly_white", width=900, height=420)
    figure.write_html(path, include_plotlyjs=True)


if __name__ == "__main__":
    sys.exit(main())
