"""Check a plan against the invariants it must keep; used in tests and on request at run time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.planning.loads import cost_at_degree, language_loads, sharded_loads, vision_loads
from trimtab.planning.settings import PlanSettings
from trimtab.planning.vision import encodings
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


def validate_plan(plan: StepPlan, batch: BatchMetadata, costs: Costs, settings: PlanSettings) -> None:
    """Every sample and frame placed once, on a whole node, caps kept, predictions those of the placement.

    Raises:
        InvalidPlanError: names the first invariant broken, with the sample or rank and the values.
    """
    _check_samples(plan, batch)
    _check_caps(plan, batch, settings)
    _check_frames(plan, batch)
    _check_predictions(plan, batch, costs)


def _check_samples(plan: StepPlan, batch: BatchMetadata) -> None:
    placed = (
        ("rank", plan.rank, plan.ranks),
        ("micro_batch", plan.micro_batch, plan.micro_batches),
        ("degree less 1", plan.degree - 1, plan.ranks),
    )
    for name, values, limit in placed:
        if values.shape != (len(batch),):
            raise InvalidPlanError(f"{name} holds {values.shape} entries for {len(batch)} samples")
        outside = np.flatnonzero((values < 0) | (values >= limit))
        if len(outside):
            row = int(outside[0])
            raise InvalidPlanError(f"sample {batch.sample_ids[row]}: {name}={values[row]} is not below {limit}")
    off_node = np.flatnonzero((plan.rank % plan.degree != 0) | (plan.rank + plan.degree > plan.ranks))
    if len(off_node):
        row = int(off_node[0])
        raise InvalidPlanError(
            f"sample {batch.sample_ids[row]}: degree {plan.degree[row]} from rank {plan.rank[row]} is no node of "
            f"{plan.ranks} ranks"
        )
    chain = np.unique(plan.degree)
    if (chain[1:] % chain[:-1] != 0).any():
        raise InvalidPlanError(f"degrees {chain.tolist()} do not nest: each must divide the next")


def _check_caps(plan: StepPlan, batch: BatchMetadata, settings: PlanSettings) -> None:
    shape = (plan.micro_batches, plan.ranks)
    held = sharded_loads(-(-batch.tokens // plan.degree), plan.rank, plan.micro_batch, plan.degree, shape)
    caps = (
        ("max_tokens_per_micro_batch", settings.max_tokens_per_micro_batch, held),
        ("max_tokens_per_rank", settings.max_tokens_per_rank, held.sum(axis=0)[None]),
    )
    for name, cap, tokens in caps:
        if cap is not None and plan.strategy != "as-is" and int(tokens.max(initial=0)) > cap:
            rank = int(tokens.max(axis=0).argmax())
            raise InvalidPlanError(f"rank {rank}: {int(tokens.max())} tokens exceed {name}={cap}")
    counts = language_loads(np.ones(len(batch), dtype=np.int64), plan.rank, plan.micro_batch, shape)
    if settings.equal_counts and int(counts.max() - counts.min()) > 1:
        raise InvalidPlanError(f"equal_counts: ranks hold from {counts.min()} to {counts.max()} samples")


def _check_frames(plan: StepPlan, batch: BatchMetadata) -> None:
    """The units of every (key, micro-batch) must tile its frames in order."""
    units = plan.units
    work = encodings(batch, np.zeros(batch.num_visuals, dtype=np.int64), plan.rank, plan.micro_batch)
    expected = {(int(v), int(m)): int(f) for v, m, f in zip(work.visual, work.micro_batch, work.frames, strict=True)}
    reached: dict[tuple[int, int], int] = {}
    for visual, start, stop, rank, micro_batch in _unit_rows(plan):
        where = (visual, micro_batch)
        if where not in expected or start != reached.get(where, 0) or stop <= start:
            raise InvalidPlanError(
                f"visual {visual} in micro-batch {micro_batch}: unit {start}:{stop} on rank {rank} "
                f"does not follow frame {reached.get(where, 0)}"
            )
        if not 0 <= rank < plan.ranks:
            raise InvalidPlanError(f"visual {visual}: unit {start}:{stop} on rank {rank} of {plan.ranks}")
        reached[where] = stop
    if reached != expected:
        visual, micro_batch = next(where for where in expected if reached.get(where) != expected[where])
        raise InvalidPlanError(
            f"visual {visual} in micro-batch {micro_batch}: {reached.get((visual, micro_batch), 0)} of "
            f"{expected[visual, micro_batch]} frames are encoded ({len(units)} units)"
        )


def _unit_rows(plan: StepPlan) -> list[list[int]]:
    units = plan.units
    columns = (units.visual, units.frame_start, units.frame_stop, units.rank, units.micro_batch)
    rows: list[list[int]] = np.stack(columns, axis=1).tolist()
    return rows


def _check_predictions(plan: StepPlan, batch: BatchMetadata, costs: Costs) -> None:
    shape = (plan.micro_batches, plan.ranks)
    on_rank = cost_at_degree(costs, plan.degree)
    language = sharded_loads(on_rank, plan.rank, plan.micro_batch, plan.degree, shape)
    work_placed: tuple[tuple[str, NDArray[np.int64], NDArray[np.int64]], ...] = (
        ("language_ns", plan.language_ns, language),
        ("vision_ns", plan.vision_ns, vision_loads(costs.vision_frame_ns, plan.units, shape)),
    )
    for name, stated, found in work_placed:
        if stated.shape != shape or (stated != found).any():
            raise InvalidPlanError(
                f"{name} does not match the placement: {stated.sum()} ns stated, {found.sum()} placed"
            )
    if plan.step_ns < plan.lower_bound_ns:
        raise InvalidPlanError(f"step_ns={plan.step_ns} is below its lower bound {plan.lower_bound_ns}")
