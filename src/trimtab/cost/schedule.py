"""Which cost model plans which steps: coefficients change at a step boundary, the same one on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.cost.measured import MeasuredCost
from trimtab.errors import CheckpointError, SettingsError
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

CostModel = Callable[[BatchMetadata], Costs]


class CostSchedule:
    """Cost models by the first step they plan. A thread may ask for one while another adds to the schedule."""

    def __init__(self, first: CostModel) -> None:
        """Plan every step by ``first`` until a change."""
        self._entries: tuple[tuple[int, CostModel], ...] = ((0, first),)

    @property
    def newest(self) -> CostModel:
        """The model in force after all changes."""
        return self._entries[-1][1]

    @property
    def newest_from(self) -> int:
        """The first step it plans."""
        return self._entries[-1][0]

    def at(self, step: int) -> CostModel:
        """The model that plans ``step``, counted from 0."""
        return next(model for from_step, model in reversed(self._entries) if from_step <= step)

    def change(self, from_step: int, model: CostModel) -> None:
        """Plan ``from_step`` and later steps by ``model``; no rank may have planned that step yet.

        Raises:
            SettingsError: a change at that step or later is already known.
        """
        if from_step <= self.newest_from:
            raise SettingsError(f"costs already change at step {self.newest_from}, not before step {from_step}")
        self._entries = (*self._entries, (from_step, model))

    def to_json(self, next_step: int) -> dict[str, Any]:
        """What planning ``next_step`` and later steps needs; a model that was not measured is written as null."""
        kept = [entry for entry in self._entries if entry[0] > next_step]
        entries = [(0, self.at(next_step)), *kept]
        return {
            "schedule": [
                {"from_step": step, "costs": model.to_json() if isinstance(model, MeasuredCost) else None}
                for step, model in entries
            ]
        }

    @staticmethod
    def from_json(values: Mapping[str, Any], *, otherwise: CostModel) -> CostSchedule:
        """The inverse of ``to_json``; null entries become ``otherwise``.

        Raises:
            CheckpointError: the values are no schedule.
        """
        try:
            entries = [(int(entry["from_step"]), _model(entry["costs"], otherwise)) for entry in values["schedule"]]
            schedule = CostSchedule(entries[0][1])
            for from_step, model in entries[1:]:
                schedule.change(from_step, model)
        except (KeyError, IndexError, TypeError, SettingsError) as error:
            raise CheckpointError(
                f"the checkpoint's cost schedule cannot be read ({error!r}); resume with the version that wrote it"
            ) from error
        return schedule


def _model(values: Mapping[str, Any] | None, otherwise: CostModel) -> CostModel:
    return otherwise if values is None else MeasuredCost.from_json(values)
