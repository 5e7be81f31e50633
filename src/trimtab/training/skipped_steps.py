"""Steps in a row that moved no weight: too many of them end a run."""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import TrainingError
from trimtab.training.settings import OptimizerSettings


class SkippedSteps:
    """Counts them; all ranks see the same steps and raise alike."""

    def __init__(self, settings: OptimizerSettings, *, nothing: str, inspect: str, listed_in: Path) -> None:
        """Begin to count.

        Args:
            settings: ``max_skipped_steps``, and the learning rate that errors name.
            nothing: what a step without data had none of: "sample with loss".
            inspect: what to look at where gradients are not finite: "the data".
            listed_in: file that lists what could not be loaded.
        """
        self._settings, self._nothing, self._inspect, self._listed_in = settings, nothing, inspect, listed_in
        self._without_data = self._not_finite = 0

    def after(self, step: int, *, had_data: bool, finite: bool) -> None:
        """Count a step; one without data says nothing of gradients.

        Raises:
            TrainingError: more than ``max_skipped_steps`` in a row had no data, or no finite gradient.
        """
        if not had_data:
            self._without_data += 1
            if self._without_data > self._settings.max_skipped_steps:
                raise TrainingError(
                    f"step {step}: no {self._nothing} could be loaded for {self._without_data} steps in a row; check "
                    f"that the dataset's files are there ({self._listed_in} lists what failed)"
                )
            return
        self._without_data = 0
        self._not_finite = 0 if finite else self._not_finite + 1
        if self._not_finite > self._settings.max_skipped_steps:
            raise TrainingError(
                f"step {step}: the gradient was not finite for {self._not_finite} steps in a row; lower "
                f"optimizer.learning_rate={self._settings.learning_rate:g} or inspect {self._inspect}"
            )
