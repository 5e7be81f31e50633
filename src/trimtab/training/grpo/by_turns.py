"""Two GRPO runs of the same steps by turns, so that what else the machine does touches both alike."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from trimtab.errors import SettingsError
from trimtab.runtime.groups import Ranks
from trimtab.training.grpo.run import GRPORun
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.stop_signal import StopSignal


@dataclass(frozen=True, kw_only=True)
class GRPOByTurns:
    """Two runs that share ranks; ``turn`` steps of one are followed by as many of the other."""

    main: GRPOSettings
    other: GRPOSettings
    turn: int = 2

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: the runs write to one folder, or differ in length.
        """
        if self.main.folder == self.other.folder:
            raise SettingsError(f"both runs write to {self.main.folder}; give them different balance.mode or names")
        if self.main.last_step != self.other.last_step:
            raise SettingsError(
                f"the runs have {self.main.last_step} and {self.other.last_step} steps; give both as many"
            )

    @property
    def ranks(self) -> int | None:
        """Processes to start; see ``SFTSettings``."""
        return self.main.ranks

    @property
    def timeout_s(self) -> float:
        """Longest wait for another rank."""
        return self.main.timeout_s


def time_by_turns(turns: GRPOByTurns, ranks: Ranks) -> bool:
    """Run both, writing their steps and neither model nor checkpoint; False where a signal stopped them.

    Raises:
        TrimtabError: bad input or a failed rank; the same error on every rank.
    """
    with (
        StopSignal() as stop,
        closing(GRPORun(turns.main, ranks, stop)) as main,
        closing(GRPORun(turns.other, ranks, stop)) as other,
    ):
        for begun in range(0, turns.main.last_step, turns.turn):
            for run in (main, other):
                last = min(begun + turns.turn, turns.main.last_step)
                if not run.train_until(last) and last < turns.main.last_step:
                    return False
    return True
