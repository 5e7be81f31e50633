"""Rows of the table -> metadata -> costs -> the step's plan. The one place the trainer and loader ask for a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.schedule import CostModel, CostSchedule
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.table import MetadataTable

AddDegrees = Callable[[BatchMetadata, Costs], Costs]
"""Adds to the costs of whole samples what they cost where several ranks share them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedStep:
    """A step and its plan.

    Attributes:
        step: optimizer step, from 0.
        rows: int64 [N], rows of the table.
        batch: their metadata.
        plan: what runs where.
        gain: the plan balance would have run, where ``plan`` is not it (balance off or observed).
        planning_ms: time to plan.
    """

    step: int
    rows: NDArray[np.int64]
    batch: BatchMetadata
    plan: StepPlan
    gain: StepPlan | None
    planning_ms: float


class StepPlanner:
    """Plans steps; a pure function of table, cost model and settings, so all ranks plan alike."""

    def __init__(
        self,
        table: MetadataTable,
        cost_model: CostModel | CostSchedule,
        *,
        ranks: int,
        settings: PlanSettings,
        observed: PlanSettings | None = None,
        add_degrees: AddDegrees | None = None,
    ) -> None:
        """Plan for ``ranks``.

        Args:
            table: the samples.
            cost_model: what they cost, at any step or by step.
            ranks: data-parallel ranks.
            settings: of the plan that runs.
            observed: of a second plan that is only reported.
            add_degrees: completes the costs where samples may be shared.
        """
        self._table = table
        self._costs = cost_model if isinstance(cost_model, CostSchedule) else CostSchedule(cost_model)
        self._ranks = ranks
        self._settings = settings
        self._observed = observed
        self._add_degrees = add_degrees

    def sample_id(self, row: int) -> str:
        """Name of the sample in a row of the table."""
        return self._table.sample(row).sample_id

    def plan(self, step: int, rows: NDArray[np.int64], pack_of: NDArray[np.int64] | None = None) -> PlannedStep:
        """Plan the given rows as one optimizer step; see ``plan_step`` for ``pack_of``."""
        batch = self._table.batch(rows)
        began = time.perf_counter()
        costs = self._costs.at(step)(batch)
        if self._add_degrees:
            costs = self._add_degrees(batch, costs)
        plan = plan_step(batch, costs, self._ranks, self._settings, pack_of=pack_of)
        planning_ms = (time.perf_counter() - began) * 1e3
        gain = plan_step(batch, costs, self._ranks, self._observed, pack_of=pack_of) if self._observed else None
        return PlannedStep(step=step, rows=rows, batch=batch, plan=plan, gain=gain, planning_ms=planning_ms)
