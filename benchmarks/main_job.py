"""The main job four ways on the same data: baseline, + loader, + balance, both.

    python benchmarks/main_job.py [--quick] [--json] [--ranks 2] [--part sft|grpo]

The baseline is what single-controller frameworks do: rank 0 decodes everything, with the decode processes, cache and
prefetch depth of all ranks together, and ships tensors; samples run in the order they come. "+ loader" lets every rank
decode its own, "+ balance" plans the step, "both" is the product. One set of ranks and one model run all four ways by
turns over the same steps, so each figure is paired with its neighbours in time. ``--part grpo`` does the same for GRPO,
by phase (``main_job_grpo.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import main_job_grpo
from harness import Case, Check, Report
from on_ranks import OnRanks
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DemoSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.schema.reports import StepReport
from trimtab.training.job import Job, build_job, reopen_job
from trimtab.training.launch import launch
from trimtab.training.settings import BalanceSettings, SFTSettings
from trimtab.training.sft import train_step
from trimtab.training.stop_signal import StopSignal

OFF, CENTRAL = BalanceSettings(mode="off"), LoaderSettings(mode="central")
VARIANTS = {
    "baseline": (OFF, CENTRAL),
    "+ loader": (OFF, LoaderSettings()),
    "+ balance": (BalanceSettings(), CENTRAL),
    "both": (BalanceSettings(), LoaderSettings()),
}
MEASURES: dict[str, tuple[str, Callable[[StepReport], float]]] = {
    "step time": ("ms", lambda report: report.step_ms),
    "exposed data time": ("ms", lambda report: report.exposed_data_ms),
    "largest/mean rank time": ("ratio", lambda report: max(report.rank_ms) / max(fmean(report.rank_ms), 1e-9)),
}


@dataclass(frozen=True, kw_only=True)
class Turns(OnRanks[SFTSettings]):
    """What the ranks run: ``rounds`` times every variant over the next ``steps`` steps, results to ``out``."""

    rounds: int
    steps: int
    out: Path


def take_turns(turns: Turns, ranks: Ranks) -> bool:
    """Run on one rank; rank 0 writes a JSON line for every variant and round."""
    job = build_job(turns.settings, ranks)
    stop = StopSignal()
    try:
        for turn in range(turns.rounds):
            for name, (balance, loader) in VARIANTS.items():
                settings = replace(turns.settings, balance=balance, loader=loader)
                reports = run_steps(reopen_job(job, settings), turn * turns.steps, turns.steps, stop)
                if ranks.is_first:
                    with turns.out.open("a") as lines:
                        row = {"variant": name, "round": turn, "steps": [report.to_json() for report in reports]}
                        lines.write(json.dumps(row) + "\n")
    finally:
        job.close()
        stop.restore()
    return True


def run_steps(job: Job, first: int, steps: int, stop: StopSignal) -> list[StepReport]:
    """The steps ``first`` and following; the first of them, which fills the pipeline, is left out."""
    job.sampler.consumed(first - 1)
    loader = job.open_loader(last_step=first + steps)
    reports = []
    try:
        began = time.perf_counter()
        for _ in range(steps):
            job.clock.mark("data")
            reports.append(train_step(job, loader.next(), began, stop).report)
            began = time.perf_counter()
    finally:
        loader.close()
        job.close()
    return reports[1:]


def main() -> int:
    """Prepare the demo's data, let the variants take turns, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of few steps; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--part", choices=("sft", "grpo"), default="sft", help="which job (default: sft)")
    args = parser.parse_args()
    if args.part == "grpo":
        return main_job_grpo.run(quick=args.quick, ranks=args.ranks, as_json=args.json)
    rounds, steps = (2, 3) if args.quick else (9, 7)
    with tempfile.TemporaryDirectory() as folder:
        options = DemoOptions(runs=Path(folder), ranks=args.ranks, settings=demo_settings(quick=args.quick))
        settings = training_settings(options, *prepare(options))
        turns = Turns(settings=settings, rounds=rounds, steps=steps, out=Path(folder) / "turns.jsonl")
        if launch(take_turns, turns) != 0:
            print("stopped", file=sys.stderr)
            return 1
        rows = [json.loads(line) for line in turns.out.read_text().splitlines()]
    return report_of(rows, quick=args.quick).finish(as_json=args.json)


def demo_settings(*, quick: bool) -> DemoSettings:
    """The demo's data; a part of it for a quick run."""
    full = DemoSettings()
    return replace(full, train=120, held_out=20) if quick else full


def report_of(rows: list[dict[str, Any]], *, quick: bool) -> Report:
    """Figures of every variant, and paired ratios to the baseline of the same round."""
    report = Report(name="main_job", quick=quick)
    steps = {(row["variant"], row["round"]): [StepReport(**step) for step in row["steps"]] for row in rows}
    rounds = sorted({row["round"] for row in rows})
    for variant in VARIANTS:
        for measure, (unit, value) in MEASURES.items():
            values = [value(step) for turn in rounds for step in steps[variant, turn]]
            report.cases.append(Case.of(measure, variant, unit, values))
    for variant in list(VARIANTS)[1:]:
        ratios = paired_ratios(steps, variant, rounds)
        report.cases.append(Case.of("step time / baseline, paired by round", variant, "ratio", ratios))
    both = median(paired_ratios(steps, "both", rounds))
    report.checks.append(Check.below("both / baseline, median paired step time", both, 1.0, timed=True))
    report.notes.append("two cores run the ranks and their decode processes alike, so decoding competes with compute")
    return report


def paired_ratios(steps: dict[tuple[str, int], list[StepReport]], variant: str, rounds: list[int]) -> list[float]:
    """Time of the variant's steps / time of the baseline's, round by round."""

    def total(name: str, turn: int) -> float:
        return sum(step.step_ms for step in steps[name, turn])

    return [total(variant, turn) / total("baseline", turn) for turn in rounds]


if __name__ == "__main__":
    sys.exit(main())
