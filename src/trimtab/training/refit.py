"""Corrects a run's costs by its own steps: rank 0 fits at a step boundary, all ranks plan by the result at one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch.distributed as dist

from trimtab.cost.measured import MeasuredCost
from trimtab.cost.observations import PhaseRecord
from trimtab.cost.rank_work import RankWork
from trimtab.cost.refit import Refit, refit
from trimtab.cost.schedule import CostSchedule
from trimtab.schema.number_of import number_of
from trimtab.schema.reports import StepReport

WINDOW = 256  # steps fitted to at most: the newest, since costs drift with the data and the machine
_COLD_STEPS = 2


class CostRefit:
    """Keeps a run's newest steps and, every so many of them, tries new coefficients on them."""

    def __init__(
        self,
        schedule: CostSchedule,
        *,
        every: int,
        last_step: int,
        horizon: Callable[[int], int],
        group: dist.ProcessGroup,
        say: Callable[[str], None],
    ) -> None:
        """Watch a run.

        Args:
            schedule: which costs plan which step; new ones are added to it.
            every: steps between fits; 0 never fits.
            last_step: steps before this one are trained; a change that would come later is not made.
            horizon: the first step no rank can have planned when all have just run the given one.
            group: gloo group of all ranks.
            say: tells the person watching, on rank 0.
        """
        self._schedule, self._every, self._last, self._horizon = schedule, every, last_step, horizon
        self._group, self._say = group, say
        self._records: deque[tuple[PhaseRecord, PhaseRecord]] = deque(maxlen=WINDOW)
        self._told: set[tuple[str, str]] = set()

    def remember(self, reports: Iterable[StepReport]) -> None:
        """Take in steps that ran.

        The run's cold first steps are left out, those without recorded work too, and those whose ranks shared a
        sample: their times count exchanges of which a whole sample knows nothing.
        """
        for report in reports:
            recorded = "language" in report.compute_ms and report.vision_work
            if report.step >= _COLD_STEPS and recorded and sum(report.rank_work["samples"]) == report.samples:
                self._records.append((_record(report, "language"), _record(report, "vision")))

    def after(self, report: StepReport) -> None:
        """Take in a step and fit where one is due; a collective of the group, with the same outcome on every rank."""
        if not self._every:
            return
        self.remember([report])
        from_step = max(self._horizon(report.step), self._schedule.newest_from + 1)
        if (report.step + 1) % self._every or from_step >= self._last:
            return
        found: list[dict[str, dict[str, float]] | None] = [None]
        if self._group.rank() == 0:
            costs = self._fit(report.step, from_step)
            found = [costs.to_json() if costs else None]
        dist.broadcast_object_list(found, group=self._group, group_src=0)
        if found[0]:
            self._schedule.change(from_step, MeasuredCost.from_json(found[0]))

    def _fit(self, step: int, from_step: int) -> MeasuredCost | None:
        """New costs, or None where those in force stay."""
        in_force = self._schedule.newest
        measured = in_force if isinstance(in_force, MeasuredCost) else None
        language = refit([record for record, _ in self._records], measured.language if measured else None)
        outcomes = {"language": language}
        with_frames = [record for _, record in self._records if record.work.samples.any()]
        if with_frames:
            outcomes["vision"] = refit(with_frames, measured.frame if measured else None)
        self._tell_kept(step, outcomes)
        found = {part: outcome.cost for part, outcome in outcomes.items() if outcome.cost}
        if measured is None and len(found) < 2:
            return None  # counted FLOPs and measured times have no common scale: both parts change, or neither
        if not found:
            return None
        self._say(
            f"costs fitted to {number_of(len(self._records), 'step')} plan from step {from_step} on: {_gains(outcomes)}"
        )
        old_language, old_frame = (measured.language, measured.frame) if measured else (None, None)
        new_language, new_frame = found.get("language", old_language), found.get("vision", old_frame)
        assert new_language is not None
        assert new_frame is not None
        return MeasuredCost(language=new_language, frame=new_frame)

    def _tell_kept(self, step: int, outcomes: dict[str, Refit]) -> None:
        for part, outcome in outcomes.items():
            if outcome.kept and (part, outcome.kept) not in self._told:
                self._told.add((part, outcome.kept))
                self._say(f"step {step}: {part} costs stay as they are: {outcome.reason}; said once")


def _record(report: StepReport, phase: str) -> PhaseRecord:
    return PhaseRecord(
        work=RankWork.from_json(report.rank_work if phase == "language" else report.vision_work),
        compute_ms=report.compute_ms[phase],
        includes_waiting=report.compute_includes_waiting,
    )


def _gains(outcomes: dict[str, Refit]) -> str:
    parts = []
    for name, outcome in outcomes.items():
        if outcome.cost and outcome.error is not None:
            before = "" if outcome.error_in_force is None else f", before {outcome.error_in_force:.1%}"
            parts.append(f"{name} {outcome.error:.1%} off on the newest steps{before}")
    return "; ".join(parts)
