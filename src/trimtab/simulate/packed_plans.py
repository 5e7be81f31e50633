"""Plans of steps whose packs were filled beforehand, by strategies that see one micro-batch at a time.

Pack p is dealt to rank ``p % R`` in micro-batch ``p // R``. LoongForge balances each micro-batch of R packs, knowing
the language work the ranks had before it; without balance every pack runs where it was dealt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bounds import mean_bound
from trimtab.planning.loads import step_time
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan, VisionUnits
from trimtab.simulate.workload import visual_rows

AS_PACKED = frozenset({"as-is", "loongforge"})


def plan_as_packed(
    batch: BatchMetadata, costs: Costs, ranks: int, settings: PlanSettings, pack_of: NDArray[np.int64]
) -> StepPlan:
    """Plan micro-batch after micro-batch.

    Args:
        batch: N samples.
        costs: their costs.
        ranks: R.
        settings: of the planner; ranks remember earlier micro-batches where they meet once a step.
        pack_of: int64 [N].
    """
    before = np.zeros(ranks, dtype=np.int64)
    rows_of, plans = [], []
    for index in range(int(pack_of.max(initial=0)) // ranks + 1):
        rows = np.flatnonzero(pack_of // ranks == index)
        plan = plan_step(
            batch.take(rows),
            costs.take(rows, visual_rows(batch, rows)),
            ranks,
            settings,
            history=before if settings.sync == "step" else None,
            current_rank=pack_of[rows] % ranks,
        )
        before = before + plan.language_ns.sum(axis=0)
        rows_of.append(rows)
        plans.append(plan)
    return _joined(batch, rows_of, plans)


def _joined(batch: BatchMetadata, rows_of: list[NDArray[np.int64]], plans: list[StepPlan]) -> StepPlan:
    """One plan of the plans of consecutive micro-batches."""
    rank, micro_batch = np.zeros(len(batch), dtype=np.int64), np.zeros(len(batch), dtype=np.int64)
    first, units = 0, []
    for rows, plan in zip(rows_of, plans, strict=True):
        rank[rows], micro_batch[rows] = plan.rank, plan.micro_batch + first
        units.append((visual_rows(batch, rows)[plan.units.visual], plan.units, first))
        first += plan.micro_batches
    language = np.concatenate([plan.language_ns for plan in plans])
    vision = np.concatenate([plan.vision_ns for plan in plans])
    step_ns = step_time(language, vision, plans[0].sync)
    return StepPlan(
        ranks=plans[0].ranks,
        micro_batches=first,
        rank=rank,
        degree=np.ones_like(rank),
        micro_batch=micro_batch,
        units=VisionUnits(
            visual=np.concatenate([visual for visual, _, _ in units]),
            frame_start=np.concatenate([each.frame_start for _, each, _ in units]),
            frame_stop=np.concatenate([each.frame_stop for _, each, _ in units]),
            rank=np.concatenate([each.rank for _, each, _ in units]),
            micro_batch=np.concatenate([each.micro_batch + offset for _, each, offset in units]),
        ),
        language_ns=language,
        vision_ns=vision,
        step_ns=step_ns,
        current_step_ns=step_ns,
        lower_bound_ns=mean_bound(int(language.sum() + vision.sum()), plans[0].ranks, None, None),
        sync=plans[0].sync,
        denominators={name: sum(plan.denominators[name] for plan in plans) for name in plans[0].denominators},
        strategy=plans[0].strategy,
    )
