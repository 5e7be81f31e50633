"""Two runs of the same steps by turns, so that what else the machine does touches both alike."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from trimtab.errors import SettingsError
from trimtab.runtime.groups import Ranks
from trimtab.schema.setting_checks import check_least
from trimtab.training.settings import SFTSettings
from trimtab.training.sft import SupervisedRun
from trimtab.training.stop_signal import StopSignal


@dataclass(frozen=True, kw_only=True)
class ByTurns:
    """Two runs that share ranks.

    Attributes:
        main: trained to its end.
        other: trained for a stretch beside the main run's first steps.
        turn: steps a run takes before the other takes its turn.
    """

    main: SFTSettings
    other: SFTSettings
    turn: int = 8

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: the runs write to one folder, or a turn has no step.
        """
        if self.main.folder == self.other.folder:
            raise SettingsError(f"both runs write to {self.main.folder}; give them different balance.mode or names")
        check_least("turn", self.turn, 1)

    @property
    def ranks(self) -> int | None:
        """Processes to start; see ``SFTSettings``."""
        return self.main.ranks

    @property
    def timeout_s(self) -> float:
        """Longest wait for another rank."""
        return self.main.timeout_s


def train_by_turns(turns: ByTurns, ranks: Ranks) -> bool:
    """Train both runs on this rank; False where a signal stopped them.

    Raises:
        TrimtabError: bad input or a failed rank; the same error on every rank.
    """
    with (
        StopSignal() as stop,
        closing(SupervisedRun(turns.main, ranks, stop)) as main,
        closing(SupervisedRun(turns.other, ranks, stop)) as other,
    ):
        for begun in range(0, turns.other.last_step, turns.turn):
            for run, settings in ((main, turns.main), (other, turns.other)):
                if not run.train_until(min(begun + turns.turn, settings.last_step)):
                    return False
        other.close()
        done = main.train_until(turns.main.last_step)
        main.save()
        if done:
            main.finish()
    return done
