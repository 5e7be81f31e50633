"""Loss of every step, and of reinforcement its rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trimtab.report.figures.lines import Column, line_chart, step_table, thinning_note
from trimtab.report.run import Run
from trimtab.report.sections import Section
from trimtab.schema.number_of import number_of

_OF_GRPO = (
    ("reward_mean", "mean reward", "{:.3f}"),
    ("reward_std", "deviation of rewards", "{:.3f}"),
    ("kl", "divergence from the reference", "{:.4g}"),
    ("clip_fraction", "share of tokens clipped", "{:.4f}"),
    ("logprob_difference_max", "largest |log-probability at rollout - at inference|", "{:.3g}"),
    ("equal_groups", "groups of equal rewards", "{:.0f}"),
    ("cut_replies", "replies cut", "{:.0f}"),
    ("empty_replies", "empty replies", "{:.0f}"),
)
_CHARTED = (
    "mean reward",
    "loss",
    "gradient norm",
    "learning rate",
    "largest |log-probability at rollout - at inference|",
)


def learning(runs: Sequence[Run]) -> Section:
    """The section."""
    columns = _columns(runs)
    rewarded = any(heading == "mean reward" for heading, _, _ in columns)
    return Section(
        title="Reward and loss" if rewarded else "Loss",
        text=[*_accuracies(runs), *_not_finite(runs), *thinning_note(runs)],
        charts=[line_chart(heading, runs, column) for heading, column, _ in columns if heading in _CHARTED],
        table=step_table(runs, columns),
    )


def _columns(runs: Sequence[Run]) -> list[tuple[str, Column, str]]:
    columns: list[tuple[str, Column, str]] = [
        (heading, _named(name), pattern)
        for name, heading, pattern in _OF_GRPO
        if any(value is not None for run in runs for value in run.column(name))
    ]
    return [
        *columns[:1],
        ("loss", lambda run: [step.loss for step in run.steps], "{:.4f}"),
        ("gradient norm", lambda run: [step.grad_norm for step in run.steps], "{:.3f}"),
        ("learning rate", lambda run: [step.learning_rate for step in run.steps], "{:.3g}"),
        *columns[1:],
    ]


def _named(name: str) -> Column:
    return lambda run: run.column(name)


def _accuracies(runs: Sequence[Run]) -> list[str]:
    said = []
    for run in runs:
        figures = run.evaluation or {}
        right, blanked = figures.get("with_pixels"), figures.get("blanked")
        if isinstance(right, int | float) and isinstance(blanked, int | float):
            said.append(
                f"{run.name}: held-out accuracy {right:.1%}, with blanked pixels {blanked:.1%} "
                f"({figures.get('samples', '?')} samples)."
            )
    return said


def _not_finite(runs: Sequence[Run]) -> list[str]:
    said = []
    for run in runs:
        steps = [str(step.step) for step in run.steps if not math.isfinite(step.loss)]
        if steps:
            said.append(f"{run.name}: the loss was not finite in {_listed(steps)}.")
        skipped = [step for step in run.steps if step.grad_norm is None]
        for why, learned_from in (("its gradient not finite", True), ("nothing to learn from loaded", False)):
            steps = [str(step.step) for step in skipped if bool(step.loss_tokens) is learned_from]
            if steps:
                said.append(f"{run.name}: skipped, {why}: {_listed(steps)}.")
    return said


def _listed(steps: Sequence[str]) -> str:
    return f"{number_of(len(steps), 'step')} ({', '.join(steps[:10])}{', …' if len(steps) > 10 else ''})"
