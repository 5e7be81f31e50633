"""What the loader asks of a sampler."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class StepSource(Protocol):
    """Decides which samples form each optimizer step, alike on all ranks: ``StepSampler`` or ``PackSampler``."""

    @property
    def next_step(self) -> int:
        """The first step not yet consumed."""

    def rows(self, step: int) -> NDArray[np.int64]:
        """int64 [N], rows of the table that form ``step``."""

    def pack_of(self, step: int) -> NDArray[np.int64] | None:
        """int64 [N], pack of each of ``rows(step)``; None where samples are free to run with any others."""

    def replace(self, *, bad_rows: list[int], in_step: int) -> list[int]:
        """Add one other sample for each bad one to ``in_step``; returns their rows."""

    def consumed(self, step: int) -> None:
        """Note that ``step`` has been trained on."""

    def state_dict(self) -> dict[str, Any]:
        """What was consumed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the steps that were consumed."""
