"""The GRPO job four ways on the same prompts: baseline, + loader, + balance, both, by phase.

    python benchmarks/main_job_grpo.py [--quick] [--json] [--ranks 2]

The variants are those of ``main_job.py``. Prompts are the demo's heavy-tailed images and clips; the learning rate is 0,
so that every variant samples the same replies and each step is paired with its neighbours in time. One set of ranks and
one model run all four ways by turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness import Case, Check, Report
from on_ranks import OnRanks
from trimtab.demo import questions
from trimtab.demo.grpo_settings import GRPODemoSettings
from trimtab.demo.model import write_model
from trimtab.demo.run_grpo import GRPODemoOptions, timing_settings
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.training.grpo.job import GRPOJob, build_grpo_job, reopen_grpo_job
from trimtab.training.grpo.loop import grpo_step
from trimtab.training.grpo.phases import PHASES
from trimtab.training.grpo.prepare import finish_step, start_step
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.launch import launch
from trimtab.training.stop_signal import StopSignal

VARIANTS = {
    "baseline": ("off", "central"),
    "+ loader": ("off", "shadow"),
    "+ balance": ("on", "central"),
    "both": ("on", "shadow"),
}


@dataclass(frozen=True, kw_only=True)
class Turns(OnRanks[GRPOSettings]):
    """What the ranks run: ``rounds`` times every variant over the next ``steps`` steps, results to ``out``."""

    rounds: int
    steps: int
    out: Path


def take_turns(turns: Turns, ranks: Ranks) -> bool:
    """Run on one rank; rank 0 writes a JSON line for every variant and round."""
    job = build_grpo_job(turns.settings, ranks)
    stop = StopSignal()
    try:
        for turn in range(turns.rounds):
            for name, (mode, loader) in VARIANTS.items():
                settings = replace(
                    turns.settings,
                    balance=replace(turns.settings.balance, mode=mode),  # type: ignore[arg-type]
                    loader=LoaderSettings(mode=loader),  # type: ignore[arg-type]
                )
                rows = run_steps(reopen_grpo_job(job, settings), turn * turns.steps, turns.steps, stop)
                if ranks.is_first:
                    with turns.out.open("a") as lines:
                        lines.write(json.dumps({"variant": name, "round": turn, "steps": rows}) + "\n")
    finally:
        job.close()
        stop.restore()
    return True


def run_steps(job: GRPOJob, first: int, steps: int, stop: StopSignal) -> list[dict[str, Any]]:
    """Records of the steps ``first`` and following; the first of them, which fills the pipeline, is left out."""
    rows = []
    try:
        pending = start_step(job, first)
        for step in range(first, first + steps):
            began = time.perf_counter()
            with job.watch.phase("data"):
                loaded = finish_step(job, pending)
                pending = start_step(job, step + 1)
            rows.append(grpo_step(job, loaded, began, stop).report.to_json())
    finally:
        if job.executor:
            job.executor.close()
    return rows[1:]


def main() -> int:
    """Prepare the demo's data, let the variants take turns, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few steps; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    return run(quick=args.quick, ranks=args.ranks, as_json=args.json)


def run(*, quick: bool, ranks: int, as_json: bool) -> int:
    """The benchmark; returns the exit status."""
    rounds, steps = (1, 2) if quick else (7, 5)
    with tempfile.TemporaryDirectory() as folder:
        numbers = replace(GRPODemoSettings(), timing_samples=40 if quick else 400)
        options = GRPODemoOptions(runs=Path(folder), ranks=ranks, settings=numbers)
        settings = timing_settings(options, write_model(Path(folder) / "model", questions.texts(), 0))
        turns = Turns(settings=settings, rounds=rounds, steps=steps, out=Path(folder) / "turns.jsonl")
        if launch(take_turns, turns) != 0:
            print("stopped", file=sys.stderr)
            return 1
        rows = [json.loads(line) for line in turns.out.read_text().splitlines()]
    return report_of(rows, quick=quick).finish(as_json=as_json)


def report_of(rows: list[dict[str, Any]], *, quick: bool) -> Report:
    """Time of steps and phases of every variant, and paired ratios to the baseline of the same round."""
    report = Report(name="main_job_grpo", quick=quick)
    steps = {(row["variant"], row["round"]): row["steps"] for row in rows}
    rounds = sorted({row["round"] for row in rows})
    for variant in VARIANTS:
        own = [step for turn in rounds for step in steps[variant, turn]]
        report.cases.append(Case.of("step time", variant, "ms", [step["step_ms"] for step in own]))
        for phase in PHASES:
            walls = [max(step["phases_ms"][phase]) for step in own]
            report.cases.append(Case.of(f"{phase}, slowest rank", variant, "ms", walls))
        report.cases.append(Case.of("largest/mean rank time", variant, "ratio", busiest_ratios(steps, variant, rounds)))
    for variant in list(VARIANTS)[1:]:
        ratios = paired_ratios(steps, variant, rounds)
        report.cases.append(Case.of("step time / baseline, paired by round", variant, "ratio", ratios))
    busiest = {name: median(busiest_ratios(steps, name, rounds)) for name in ("baseline", "both")}
    evened = (busiest["both"] - 1.0) / max(busiest["baseline"] - 1.0, 1e-9)
    report.checks.append(Check.below("uneven processor time, both / baseline", evened, 1.0, timed=True))
    if not quick:  # a few steps say nothing of wall time on a busy machine
        both = median(paired_ratios(steps, "both", rounds))
        report.checks.append(Check.below("both / baseline, median paired step time", both, 1.0, timed=True))
    report.checks.append(Check.below("steps whose replies differ between variants", differing(steps, rounds), 0.5))
    return report


def busiest_ratios(steps: dict[tuple[str, int], list[dict[str, Any]]], variant: str, rounds: list[int]) -> list[float]:
    """Processor time of the busiest rank / mean over ranks, of every step."""
    own = [step["rank_ms"] for turn in rounds for step in steps[variant, turn]]
    return [max(times) / max(fmean(times), 1e-9) for times in own]


def differing(steps: dict[tuple[str, int], list[dict[str, Any]]], rounds: list[int]) -> int:
    """Steps in which some variant's reply tokens or rewards are not the baseline's."""
    count = 0
    for turn in rounds:
        for place, step in enumerate(steps["baseline", turn]):
            others = [steps[variant, turn][place] for variant in list(VARIANTS)[1:]]
            count += any(
                (o["loss_tokens"], o["reward_mean"]) != (step["loss_tokens"], step["reward_mean"]) for o in others
            )
    return count


def paired_ratios(steps: dict[tuple[str, int], list[dict[str, Any]]], variant: str, rounds: list[int]) -> list[float]:
    """Time of the variant's steps / time of the baseline's, round by round."""

    def total(name: str, turn: int) -> float:
        return float(sum(step["step_ms"] for step in steps[name, turn]))

    return [total(variant, turn) / total("baseline", turn) for turn in rounds]


if __name__ == "__main__":
    sys.exit(main())
