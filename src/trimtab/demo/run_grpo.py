"""The demo's reinforcement: a short supervised start, GRPO on rewards alone, then a timing stretch in both modes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from trimtab.demo import answer_reward, questions
from trimtab.demo.dataset import DemoDataset, write_demo
from trimtab.demo.grpo_settings import GRPODemoSettings
from trimtab.demo.launching import run_to_the_end
from trimtab.demo.model import write_model
from trimtab.demo.scan import scan_dataset
from trimtab.loader.settings import LoaderSettings
from trimtab.report.comparison import Comparison, compare
from trimtab.report.comparison_table import comparison_table
from trimtab.report.run_records import read_steps
from trimtab.schema.number_of import number_of
from trimtab.training.grpo.by_turns import GRPOByTurns, time_by_turns
from trimtab.training.grpo.replies import differences
from trimtab.training.grpo.run import train_grpo
from trimtab.training.grpo.settings import GRPOSettings, RewardSettings, RolloutSettings
from trimtab.training.run_folder import REPLIES
from trimtab.training.settings import BalanceSettings, EvalSettings, OptimizerSettings, SFTSettings
from trimtab.training.sft import train

FOLDER = Path("demo") / "grpo"
SUMMARY = "summary.json"
_COMPARED = 10
"""Steps at either end whose mean rewards are compared."""


@dataclass(frozen=True, kw_only=True)
class GRPODemoOptions:
    """What a user may change.

    Attributes:
        runs: folder of all runs; the demo writes ``<runs>/demo/grpo/``.
        ranks: processes.
        settings: everything else.
    """

    runs: Path = Path("runs")
    ranks: int = 2
    settings: GRPODemoSettings = field(default_factory=GRPODemoSettings)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return self.runs / FOLDER


def run_grpo_demo(options: GRPODemoOptions, *, quiet: bool = False) -> dict[str, Any]:
    """Run it all and return what ``summary.json`` holds; prints it as a table unless ``quiet``.

    Raises:
        TrimtabError: a step failed.
        KeyboardInterrupt: a signal stopped it.
    """
    start = start_settings(options, *prepare(options))
    run_to_the_end(train, start)
    learning = learning_settings(options, start)
    run_to_the_end(train_grpo, learning)
    timing = timing_settings(options, start.folder / "model")
    run_to_the_end(time_by_turns, GRPOByTurns(main=timing, other=baseline_of(timing)))
    comparison = compare(read_steps(timing.folder), read_steps(baseline_of(timing).folder))
    replies = differences(_replies(timing.folder), _replies(baseline_of(timing).folder))
    summary = {**results(learning), **comparison.to_json(), "float32_replies": replies.to_json()}
    (options.folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    if not quiet:
        _print(comparison, summary, options.folder)
    return summary


def prepare(options: GRPODemoOptions) -> tuple[DemoDataset, Path]:
    """Draw the short dataset, build the model, scan; returns where they lie."""
    settings, console = options.settings, Console(stderr=True)
    data = write_demo(
        options.folder / "data", settings.seed, train=settings.train, held_out=settings.held_out,
        settings=settings.dataset,
    )  # fmt: skip
    model = write_model(options.folder / "model", questions.texts(), settings.seed)
    for jsonl in (data.train, data.held_out):
        scan_dataset(model, jsonl, console)
    return data, model


def start_settings(options: GRPODemoOptions, data: DemoDataset, model: Path) -> SFTSettings:
    """The supervised start."""
    settings = options.settings
    return SFTSettings(
        model=model,
        data=(data.train,),
        table=data.train.with_suffix(".parquet"),
        name="start",
        runs=options.folder,
        ranks=options.ranks,
        seed=settings.seed,
        steps=settings.start_steps,
        samples_per_step=settings.start_samples,
        optimizer=OptimizerSettings(
            learning_rate=settings.start_learning_rate, warmup_steps=8, final_share=0.3, beta2=0.98
        ),
        balance=BalanceSettings(costs="analytic"),
        evaluation=EvalSettings(data=(data.held_out,), table=data.held_out.with_suffix(".parquet")),
    )


def learning_settings(options: GRPODemoOptions, start: SFTSettings) -> GRPOSettings:
    """Reinforcement from where the start ended, on the same prompts; their answers only serve the reward."""
    settings = options.settings
    return GRPOSettings(
        model=start.folder / "model",
        data=start.data,
        table=start.table,
        name="learn",
        runs=start.runs,
        ranks=options.ranks,
        seed=settings.seed,
        steps=settings.steps,
        samples_per_step=settings.prompts,
        optimizer=OptimizerSettings(learning_rate=settings.learning_rate, warmup_steps=2, final_share=0.5, beta2=0.98),
        balance=BalanceSettings(costs="analytic"),
        evaluation=start.evaluation,
        rollout=RolloutSettings(
            replies=settings.replies, max_reply_tokens=settings.max_reply_tokens, prompts_at_once=16
        ),
        reward=RewardSettings(function=f"{answer_reward.__file__}:{answer_reward.exact.__name__}"),
    )


def timing_settings(options: GRPODemoOptions, model: Path) -> GRPOSettings:
    """The timing stretch, balanced: heavy-tailed prompts, weights held still. Draws and scans its data."""
    settings = options.settings
    data = write_demo(options.folder / "timing-data", settings.seed, train=settings.timing_samples, held_out=8)
    scan_dataset(model, data.train, Console(stderr=True))
    return GRPOSettings(
        model=model,
        data=(data.train,),
        table=data.train.with_suffix(".parquet"),
        name="timing",
        runs=options.folder,
        ranks=options.ranks,
        seed=settings.seed,
        steps=settings.timing_steps,
        samples_per_step=settings.timing_prompts,
        optimizer=OptimizerSettings(learning_rate=0.0),
        balance=BalanceSettings(costs="analytic"),
        rollout=RolloutSettings(
            replies=settings.timing_replies, max_reply_tokens=settings.max_reply_tokens, record=True
        ),
        reward=RewardSettings(function=f"{answer_reward.__file__}:{answer_reward.exact.__name__}"),
    )


def baseline_of(balanced: GRPOSettings) -> GRPOSettings:
    """The same run as single-controller frameworks do it."""
    balance = replace(balanced.balance, mode="off")
    return replace(balanced, balance=balance, loader=LoaderSettings(mode="central"))


def results(learning: GRPOSettings) -> dict[str, Any]:
    """Rewards of the first and last steps, and held-out accuracy with and without pixels."""
    steps = [json.loads(line) for line in (learning.folder / "steps.jsonl").read_text().splitlines()]
    rewards = [step["reward_mean"] for step in steps]
    compared = _compared(len(steps))
    accuracy = json.loads((learning.folder / "evaluation.json").read_text())
    return {
        "reward": {"first10": round(fmean(rewards[:compared]), 4), "last10": round(fmean(rewards[-compared:]), 4)},
        "grpo_steps": len(steps),
        "accuracy": {name: accuracy[name] for name in ("samples", "with_pixels", "blanked")},
    }


def _compared(steps: int) -> int:
    """Steps at either end that are compared: of a run too short for ten each, half."""
    return min(_COMPARED, max(1, steps // 2))


def _replies(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / REPLIES).read_text(encoding="utf-8").splitlines()]


def _print(comparison: Comparison, summary: dict[str, Any], folder: Path) -> None:
    console = Console()
    console.print(comparison_table(comparison))
    reward, accuracy = summary["reward"], summary["accuracy"]
    ends = number_of(_compared(summary["grpo_steps"]), "step")
    console.print(
        f"mean reward of the first {ends} {reward['first10']:.3f}, of the last {reward['last10']:.3f}; "
        f"held-out accuracy {accuracy['with_pixels']:.1%}, with blanked pixels {accuracy['blanked']:.1%}"
    )
    replies = summary["float32_replies"]
    console.print(
        f"{replies['differing']} of {replies['replies']} replies differ in some token between the modes (float32)",
        soft_wrap=True,
    )
    console.print(f"all figures: {folder / SUMMARY}", soft_wrap=True)
