"""A sample that could not be loaded, and the one that takes its place."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SkippedSample:
    """A bad sample under ``loader.on_bad_sample=skip``: it carried no loss in its step.

    Attributes:
        sample_id: its name.
        reason: why it could not be loaded.
        replacement: id of the sample drawn in its place.
        joins_step: the first step no rank can have planned yet, which the replacement joins. It may lie behind the
            run's last step; a run resumed with more steps has it.
    """

    sample_id: str
    reason: str
    replacement: str
    joins_step: int

    def to_json(self) -> dict[str, Any]:
        """An entry of ``bad_samples.json``, without its step."""
        return asdict(self)
