"""Held-out accuracy of the demo trained on packs and on plain batches, and tokens a second of both.

    python benchmarks/packed_accuracy.py [--quick] [--json] [--ranks 2] [--seeds 3]

One dataset; for each seed a model, an order and packs of its own. Both variants train on every sample the same number
of times, in as many steps: "packed" on packs of caps chosen from the data, "plain" on random batches of as many samples
as the packed steps hold on average, dealt to ranks as they come. Variants alternate, so that speeds are paired.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from harness import Case, Check, Report
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.from_config import architecture_from_config
from trimtab.demo import questions
from trimtab.demo.model import write_model
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DemoSettings
from trimtab.families.checkpoint import read_checkpoint
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.pack_table import pack_table
from trimtab.schema.table_file import read_table
from trimtab.training.launch import launch
from trimtab.training.settings import BalanceSettings, SFTSettings
from trimtab.training.sft import train

PACKS = PackingSettings(method="best")
WARM_UP_STEPS = 3
LARGEST_DIFFERENCE = 0.05  # in accuracy; of 600 answers the standard error alone is 0.02


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run.

    Attributes:
        accuracy: share of held-out samples answered right.
        tokens_per_s: language-model tokens of all ranks, the first steps left out.
    """

    accuracy: float
    tokens_per_s: float


def main() -> int:
    """Prepare the demo's data, train both variants with each seed, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, few samples; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    demo = replace(DemoSettings(), train=96, held_out=24) if args.quick else DemoSettings()
    outcomes: dict[str, list[Outcome]] = {"packed": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        options = DemoOptions(runs=Path(folder), ranks=args.ranks, settings=demo)
        dataset, _ = prepare(options)
        for seed in range(1 if args.quick else args.seeds):
            model = write_model(Path(folder) / f"model-{seed}", questions.texts(), seed, demo.model)
            base = replace(training_settings(options, dataset, model), seed=seed)
            variants = both_variants(base, args.ranks)
            for name in sorted(variants, reverse=bool(seed % 2)):
                outcomes[name].append(run(replace(variants[name], name=f"{name}-{seed}")))
    return report_of(outcomes, quick=args.quick).finish(as_json=args.json)


def both_variants(base: SFTSettings, ranks: int) -> dict[str, SFTSettings]:
    """The same epoch on packs and on plain batches, in the same number of steps."""
    table = read_table(base.table)
    costs = partial(
        analytic_costs,
        architecture=architecture_from_config(read_checkpoint(base.model).config),
        device=NOMINAL_DEVICE,
    )
    packs = pack_table(
        table, PACKS, cost_model=costs, ranks=ranks, samples_per_step=base.samples_per_step, seed=base.seed
    )
    steps = packs.steps_per_epoch
    plain = replace(base, steps=steps, samples_per_step=-(-len(table) // steps), balance=BalanceSettings(mode="off"))
    return {"packed": replace(base, steps=steps, packing=PACKS), "plain": plain}


def run(settings: SFTSettings) -> Outcome:
    """Train and evaluate."""
    if launch(train, settings) != 0:
        raise SystemExit("stopped")
    steps = [json.loads(line) for line in (settings.folder / "steps.jsonl").read_text().splitlines()]
    timed = steps[WARM_UP_STEPS:] or steps
    evaluation = json.loads((settings.folder / "evaluation.json").read_text())
    return Outcome(
        accuracy=evaluation["with_pixels"],
        tokens_per_s=1e3 * sum(step["tokens"] for step in timed) / sum(step["step_ms"] for step in timed),
    )


def report_of(outcomes: dict[str, list[Outcome]], *, quick: bool) -> Report:
    """Accuracy and speed of both variants over the seeds."""
    report = Report(name="packed_accuracy", quick=quick)
    for name, runs in outcomes.items():
        report.cases.append(Case.of("held-out accuracy", name, "share", accuracies(runs)))
        report.cases.append(Case.of("speed", name, "tokens/s", [run.tokens_per_s for run in runs]))
    paired = list(zip(outcomes["packed"], outcomes["plain"], strict=True))
    ratios = [packed.tokens_per_s / plain.tokens_per_s for packed, plain in paired]
    report.cases.append(Case.of("speed / plain, paired by seed", "packed", "ratio", ratios))
    if not quick:  # a few steps teach nothing, and are no measure of speed
        difference = abs(fmean(accuracies(outcomes["packed"])) - fmean(accuracies(outcomes["plain"])))
        what = "difference of the mean accuracies, packed and plain"
        report.checks.append(Check.below(what, difference, LARGEST_DIFFERENCE))
        report.checks.append(Check.below("plain / packed, median paired tokens/s", 1 / median(ratios), 1.0, timed=True))
    report.notes.append("plain batches are not padded here either; they lose by waiting, not by padding")
    return report


def accuracies(runs: Sequence[Outcome]) -> list[float]:
    """One a run."""
    return [run.accuracy for run in runs]


if __name__ == "__main__":
    sys.exit(main())
