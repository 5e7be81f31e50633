"""Carries a placement out: moves samples, adds what every rank needs, puts batches together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.runtime.balance_report import BalanceRecord
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.runtime.host_batch import HostBatch, HostLayout, HostSample, MicroBatch
from trimtab.runtime.padding_sample import padding_sample, padding_visual
from trimtab.runtime.repack import repack
from trimtab.runtime.sample_exchange import exchange_samples, sample_bytes
from trimtab.runtime.sample_placement import Placement
from trimtab.runtime.step_metadata import StepMetadata


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedBatches:
    """The micro-batches of this rank after the exchange.

    Attributes:
        batches: in the host's form.
        loss_weights: of each.
        placement: what was carried out.
        moved: bool [N], samples that changed rank.
        moved_bytes: over all ranks.
        exchange_ms: of this rank.
        considered: the host's micro-batches.
    """

    batches: list[HostBatch]
    loss_weights: list[float]
    placement: Placement
    moved: NDArray[np.bool_]
    moved_bytes: int
    exchange_ms: float
    considered: int

    def record(self, step: int, mode: str, *, planning_ms: float, total_ms: float) -> BalanceRecord:
        """What was done, for reports."""
        placement = self.placement
        mean = placement.mean_ns or 1.0
        reached = placement.best_ns if mode == "observe" else placement.step_ns
        return BalanceRecord(
            what="batch",
            step=step,
            mode=mode,
            applied=placement.applied,
            considered=self.considered,
            reason=placement.reason,
            samples=len(self.moved),
            moved_samples=int(self.moved.sum()),
            moved_bytes=self.moved_bytes,
            step_ratio_before=placement.current_step_ns / mean,
            step_ratio=placement.step_ns / mean,
            best_ratio=placement.best_ns / mean,
            bound_ratio=reached / placement.bound_ns if placement.bound_ns else 1.0,
            gain=1 - reached / placement.current_step_ns if placement.current_step_ns else 0.0,
            planning_ms=planning_ms,
            exchange_ms=self.exchange_ms,
            total_ms=total_ms,
        )


def placed_batches(
    parts: Sequence[MicroBatch],
    metadata: StepMetadata,
    placement: Placement,
    layout: HostLayout,
    group: dist.ProcessGroup,
    settings: BalancerSettings,
) -> PlacedBatches:
    """Carry out a placement; a collective where any sample moves.

    A micro-batch that stays as it came, with nothing to add, is the host's own object.
    """
    me = group.rank()
    samples = [sample for part in parts for sample in part.samples]
    moved = np.asarray(placement.rank != metadata.rank)
    began = time.perf_counter()
    if moved.any():
        held = exchange_samples(samples, metadata, placement.rank, layout, group)
    else:
        held = dict(zip(np.flatnonzero(metadata.rank == me).tolist(), samples, strict=True))
    exchange_ms = (time.perf_counter() - began) * 1e3
    batches, weights = [], []
    for index in range(placement.micro_batches):
        rows = np.flatnonzero((placement.rank == me) & (placement.micro_batch == index))
        added = _additions(rows, metadata, placement, index, layout, settings)
        came = _came_as(rows, metadata, parts, me)
        batches.append(
            came.original if came and not added else _put_together(rows, held, added, parts, metadata, layout)
        )
        weights.append(sum(held[row].loss_weight for row in rows.tolist()))
    sizes = sample_bytes(metadata, layout)
    return PlacedBatches(
        batches=batches,
        loss_weights=weights,
        placement=placement,
        moved=moved,
        moved_bytes=int(sizes[moved].sum()),
        exchange_ms=exchange_ms,
        considered=metadata.micro_batches,
    )


def _additions(
    rows: NDArray[np.int64],
    metadata: StepMetadata,
    placement: Placement,
    index: int,
    layout: HostLayout,
    settings: BalancerSettings,
) -> list[HostSample]:
    """Samples without loss that this rank needs in a micro-batch."""
    added = []
    if settings.mode == "on" and settings.every_rank_encodes:
        owner = metadata.sample_of_visual
        anywhere = set(metadata.visuals[placement.micro_batch[owner] == index, 0].tolist())
        here = set(metadata.visuals[np.isin(owner, rows), 0].tolist())
        added = [padding_visual(stream, metadata.form, layout) for stream in sorted(anywhere - here)]
    if not len(rows) and not added:
        added = [padding_sample(metadata.form, layout)]
    return added


def _came_as(
    rows: NDArray[np.int64], metadata: StepMetadata, parts: Sequence[MicroBatch], me: int
) -> MicroBatch | None:
    """The host's micro-batch that holds exactly these samples, or None."""
    for index, part in enumerate(parts):
        if np.array_equal(rows, np.flatnonzero((metadata.rank == me) & (metadata.micro_batch == index))):
            return part
    return None


def _put_together(
    rows: NDArray[np.int64],
    held: dict[int, HostSample],
    added: list[HostSample],
    parts: Sequence[MicroBatch],
    metadata: StepMetadata,
    layout: HostLayout,
) -> HostBatch:
    batch = repack([*(held[row] for row in rows.tolist()), *added], metadata.form, layout)
    for part in parts[:1]:
        batch.update(part.constants)
    return batch
