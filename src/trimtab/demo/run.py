"""The demo's supervised part from nothing: draw a dataset, scan it, train in both modes by turns, compare."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.demo import questions
from trimtab.demo.dataset import DemoDataset, write_demo
from trimtab.demo.launching import run_to_the_end
from trimtab.demo.model import write_model
from trimtab.demo.scan import scan_dataset
from trimtab.demo.settings import DemoSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.report.comparison import Comparison
from trimtab.report.comparison_table import comparison_table
from trimtab.report.run_comparison import SUMMARY, compare_runs
from trimtab.training.by_turns import ByTurns, train_by_turns
from trimtab.training.settings import BalanceSettings, EvalSettings, OptimizerSettings, SFTSettings

NAME = "demo"


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What a user may change.

    Attributes:
        runs: folder of all runs; the demo writes ``<runs>/demo/``.
        ranks: processes, see ``SFTSettings``.
        steps: optimizer steps of the balanced run.
        baseline_steps: steps of the baseline stretch.
        settings: everything else.
    """

    runs: Path = Path("runs")
    ranks: int = 2
    steps: int | None = None
    baseline_steps: int = 40
    settings: DemoSettings = field(default_factory=DemoSettings)


def run_demo(options: DemoOptions, *, quiet: bool = False) -> dict[str, Any]:
    """Run it all and return what ``summary.json`` holds; prints it as a table unless ``quiet``.

    Raises:
        TrimtabError: a step failed.
        KeyboardInterrupt: a signal stopped it.
    """
    dataset, model = prepare(options)
    balanced = training_settings(options, dataset, model)
    baseline = replace(
        balanced,
        balance=BalanceSettings(mode="off"),
        loader=LoaderSettings(mode="central"),
        stop_after=min(options.baseline_steps, balanced.steps),
        evaluation=EvalSettings(),
    )
    run_to_the_end(train_by_turns, ByTurns(main=balanced, other=baseline))
    accuracy = _accuracy(balanced.folder / "evaluation.json", dataset)
    comparison, summary = compare_runs(options.runs / NAME, {"accuracy": accuracy})
    if not quiet:
        _print(comparison, accuracy, options.runs / NAME)
    return summary


def prepare(options: DemoOptions) -> tuple[DemoDataset, Path]:
    """Draw the dataset, build the model, scan; returns where they lie."""
    console = Console(stderr=True)
    folder, settings = options.runs / NAME, options.settings
    dataset = write_demo(
        folder / "data", settings.seed, train=settings.train, held_out=settings.held_out, settings=settings.dataset
    )
    console.print(f"{dataset.files} encoded images and videos in {folder / 'data'}")
    model = write_model(folder / "model", questions.texts(), settings.seed, settings.model)
    for jsonl in (dataset.train, dataset.held_out):
        scan_dataset(model, jsonl, console)
    return dataset, model


def training_settings(options: DemoOptions, dataset: DemoDataset, model: Path) -> SFTSettings:
    """Settings of the balanced run."""
    numbers = options.settings.training
    return SFTSettings(
        model=model,
        data=(dataset.train,),
        table=dataset.train.with_suffix(".parquet"),
        name=NAME,
        runs=options.runs,
        ranks=options.ranks,
        steps=options.steps or numbers.steps,
        samples_per_step=numbers.samples_per_step,
        seed=options.settings.seed,
        optimizer=OptimizerSettings(
            learning_rate=numbers.learning_rate,
            warmup_steps=numbers.warmup_steps,
            final_share=numbers.final_share,
            weight_decay=numbers.weight_decay,
            beta2=numbers.beta2,
            max_grad_norm=numbers.max_grad_norm,
        ),
        evaluation=EvalSettings(data=(dataset.held_out,), table=dataset.held_out.with_suffix(".parquet")),
    )


def _accuracy(path: Path, dataset: DemoDataset) -> dict[str, Any]:
    result = json.loads(path.read_text())
    records = [json.loads(line) for line in dataset.held_out.read_text(encoding="utf-8").splitlines()]
    answers = Counter(record["messages"][-1]["content"] for record in records)
    by_kind: dict[str, list[bool]] = {}
    for record in records:
        by_kind.setdefault(record["question_kind"], []).append(result["right"][record["id"]])
    return {
        "samples": result["samples"],
        "with_pixels": result["with_pixels"],
        "blanked": result["blanked"],
        "commonest_answer": answers.most_common(1)[0][1] / len(records),
        "by_kind": {kind: sum(right) / len(right) for kind, right in sorted(by_kind.items())},
    }


def _print(comparison: Comparison, accuracy: dict[str, Any], folder: Path) -> None:
    console = Console()
    console.print(comparison_table(comparison))
    console.print(
        f"held-out accuracy {accuracy['with_pixels']:.1%}, with blanked pixels {accuracy['blanked']:.1%}, "
        f"commonest answer {accuracy['commonest_answer']:.1%}"
    )
    console.print(f"all figures: {folder / SUMMARY}", soft_wrap=True)
