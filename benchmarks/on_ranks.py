"""What a benchmark's work on a run's ranks has in common: the settings ``launch`` starts them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from trimtab.training.settings import SFTSettings

Settings = TypeVar("Settings", bound=SFTSettings)


@dataclass(frozen=True, kw_only=True)
class OnRanks(Generic[Settings]):
    """Work of ``launch(work, settings)``.

    Attributes:
        settings: of the run whose model and data the ranks open.
    """

    settings: Settings

    @property
    def ranks(self) -> int | None:
        """Ranks to start."""
        return self.settings.ranks

    @property
    def timeout_s(self) -> float:
        """Longest wait for another rank."""
        return self.settings.timeout_s
