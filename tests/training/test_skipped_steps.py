"""Steps in a row that move no weight."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.errors import TrainingError
from trimtab.training.settings import OptimizerSettings
from trimtab.training.skipped_steps import SkippedSteps


def counter(most: int = 1) -> SkippedSteps:
    settings = OptimizerSettings(learning_rate=2e-4, max_skipped_steps=most)
    return SkippedSteps(settings, nothing="prompt", inspect="the rewards", listed_in=Path("bad.json"))


def test_one_more_step_without_data_than_allowed_ends_the_run() -> None:
    steps = counter()
    for step, had_data in enumerate((False, True, False)):
        steps.after(step, had_data=had_data, finite=had_data)
    with pytest.raises(TrainingError, match=r"step 3: no prompt could be loaded for 2 steps in a row; .*bad\.json"):
        steps.after(3, had_data=False, finite=False)


def test_one_more_gradient_that_is_not_finite_than_allowed_ends_the_run() -> None:
    steps = counter()
    for step, finite in enumerate((False, True, False)):
        steps.after(step, had_data=True, finite=finite)
    said = r"step 3: .* not finite for 2 steps in a row; lower optimizer\.learning_rate=0\.0002 or inspect the rewards"
    with pytest.raises(TrainingError, match=said):
        steps.after(3, had_data=True, finite=False)


def test_a_step_without_data_neither_counts_as_a_gradient_nor_clears_the_count() -> None:
    steps = counter()
    steps.after(0, had_data=True, finite=False)
    steps.after(1, had_data=False, finite=False)
    with pytest.raises(TrainingError, match="step 2: the gradient was not finite for 2 steps"):
        steps.after(2, had_data=True, finite=False)
