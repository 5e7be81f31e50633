"""Plans of several optimizer steps over one batch, as PPO runs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning.bins import Bins, longest_first
from trimtab.planning.lpt import lpt
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


def plan_mini_batches(
    batch: BatchMetadata, costs: Costs, ranks: int, settings: PlanSettings, mini_batch: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], StepPlan]]:
    """Plan every mini-batch on its own; a plan never mixes two.

    Args:
        batch: N samples.
        costs: their costs.
        ranks: R.
        settings: with ``within_step`` samples keep their mini-batch. Without it they are dealt anew, as many to each
            and of even total cost, which changes which samples share an optimizer step.
        mini_batch: int64 [N], from 0.

    Returns:
        For each mini-batch, the rows of its samples (int64) and their plan.

    Raises:
        SettingsError: ``mini_batch`` does not name one for every sample.
        InfeasibleError: as ``plan_step``.
    """
    if mini_batch.shape != (len(batch),) or (mini_batch < 0).any():
        raise SettingsError(f"mini_batch must hold a number from 0 for each of {len(batch)} samples")
    if not settings.within_step:
        mini_batch = _dealt_anew(batch, costs, int(mini_batch.max(initial=0)) + 1)
    plans = []
    for index in np.unique(mini_batch).tolist():
        rows = np.flatnonzero(mini_batch == index)
        plans.append((rows, plan_step(batch.take(rows), _take(batch, costs, rows), ranks, settings)))
    return plans


def _dealt_anew(batch: BatchMetadata, costs: Costs, mini_batches: int) -> NDArray[np.int64]:
    total = costs.language_ns.copy()
    np.add.at(total, batch.sample_of_visual, costs.vision_frame_ns * batch.grid_thw[:, 0])
    ordered = longest_first(total, batch.tokens)
    bins = Bins(cost=total[ordered], tokens=batch.tokens[ordered], count=mini_batches, equal_counts=True)
    dealt = lpt(bins)
    assert dealt is not None  # without a token cap every sample finds room
    result = np.empty_like(dealt)
    result[ordered] = dealt
    return result


def _take(batch: BatchMetadata, costs: Costs, rows: NDArray[np.int64]) -> Costs:
    """Costs of some rows, in that order."""
    visuals = np.concatenate(
        [np.arange(batch.visual_offsets[row], batch.visual_offsets[row + 1], dtype=np.int64) for row in rows]
    )
    return costs.take(rows, visuals)
