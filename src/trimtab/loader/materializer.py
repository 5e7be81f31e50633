"""Brings a planned step's pixels to the rank that encodes them: asked for ahead, fetched when they are used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MediaError, TrimtabError
from trimtab.loader.executors.decode_task import DecodeTask, MediaRequest, Patches
from trimtab.loader.executors.protocol import MediaExecutor, MediaLease, hurry_all, release_when_dropped
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


class TaskSource(Protocol):
    """Knows where the visuals of a table's samples lie: ``MediaReader`` or ``SampleReader``.

    Attributes:
        geometry: what the table was scanned for.
    """

    geometry: VisionGeometry

    def decode_task(self, row: int, visual: int, frame_start: int, frame_stop: int) -> DecodeTask:
        """The task that decodes temporal patches of the ``visual``-th visual of a sample."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PendingMedia:
    """Media that was asked for; what is decoded for it is held until it is released, or nobody refers to it.

    Attributes:
        plan, batch: of the step.
        leases: by unit row.
        failed: unit row -> why its media could not even be asked for.
    """

    plan: StepPlan
    batch: BatchMetadata
    leases: Mapping[int, MediaLease]
    failed: Mapping[int, TrimtabError]

    def __post_init__(self) -> None:
        release_when_dropped(self, self.leases.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class Media:
    """What arrived.

    Attributes:
        patches: by unit row, read-only; zeros of the planned shape for a unit that could not be decoded.
        bad: row of the batch -> why its media could not be decoded.
        decoded: runs of frames decoded because this rank asked first; others were there or under way.
    """

    patches: Mapping[int, Patches]
    bad: Mapping[int, str] = field(default_factory=dict)
    decoded: int = 0


class Materializer:
    """``request`` a plan's units, later ``get`` them, and ``release`` them once they are packed."""

    def __init__(self, source: TaskSource, executor: MediaExecutor) -> None:
        """Fetch what ``source`` describes through ``executor``."""
        self._source, self._executor = source, executor

    def request(
        self, plan: StepPlan, batch: BatchMetadata, rows: NDArray[np.int64], *, ranks: Iterable[int], step: int
    ) -> PendingMedia:
        """Ask for the frames that ``ranks`` encode under a plan, and no others; does not block.

        A visual whose frames go to several of the ranks that share an executor is decoded once for all of them.

        Args:
            plan: of the step.
            batch: of the step.
            rows: int64 [N], the samples' rows of the table.
            ranks: whose units are fetched here.
            step: earlier steps are served first.
        """
        units = plan.units
        runs = _runs_to_decode(plan, batch, self._executor.sharers)
        leases, failed = {}, dict[int, TrimtabError]()
        for unit in np.flatnonzero(np.isin(units.rank, list(ranks))).tolist():
            visual = int(units.visual[unit])
            row = int(batch.sample_of_visual[visual])
            index = visual - int(batch.visual_offsets[row])
            try:
                task = self._source.decode_task(int(rows[row]), index, *runs[int(batch.visual_keys[visual])])
            except TrimtabError as error:
                failed[unit] = error
                continue
            frames = int(units.frame_start[unit]), int(units.frame_stop[unit])
            request = MediaRequest(task=task, frame_start=frames[0], frame_stop=frames[1], step=step)
            leases[unit] = self._executor.request(request)
        return PendingMedia(plan=plan, batch=batch, leases=leases, failed=failed)

    def get(self, pending: PendingMedia) -> Media:
        """Wait for what was asked for; what cannot be decoded is listed, not raised.

        Raises:
            LoaderError: the executor has ended, or the media was released before it was there.
        """
        hurry_all(pending.leases.values())
        patches, bad, decoded = dict[int, Patches](), dict[int, str](), 0
        for unit, problem in pending.failed.items():
            bad.setdefault(self._row(pending, unit), str(problem))
            patches[unit] = self._zeros(pending, unit)
        for unit, lease in pending.leases.items():
            try:
                answer = lease.answer.result()
            except MediaError as error:
                bad.setdefault(self._row(pending, unit), str(error))
                patches[unit] = self._zeros(pending, unit)
            else:
                patches[unit] = answer.patches
                decoded += answer.decoded
        return Media(patches=patches, bad=bad, decoded=decoded)

    def release(self, pending: PendingMedia) -> None:
        """What was asked for has been used, or is no longer wanted; it may be evicted."""
        for lease in pending.leases.values():
            lease.release()

    def _row(self, pending: PendingMedia, unit: int) -> int:
        return int(pending.batch.sample_of_visual[int(pending.plan.units.visual[unit])])

    def _zeros(self, pending: PendingMedia, unit: int) -> Patches:
        units = pending.plan.units
        height, width = pending.batch.grid_thw[int(units.visual[unit]), 1:].tolist()
        frames = int(units.frame_stop[unit] - units.frame_start[unit])
        return np.zeros((frames * height * width, self._source.geometry.patch_values), dtype=np.float32)


def _runs_to_decode(plan: StepPlan, batch: BatchMetadata, sharers: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Visual key -> first and last-plus-one frame that any of the sharers encodes."""
    units = plan.units
    runs: dict[int, tuple[int, int]] = {}
    for unit in np.flatnonzero(np.isin(units.rank, list(sharers))).tolist():
        key = int(batch.visual_keys[units.visual[unit]])
        first, last = int(units.frame_start[unit]), int(units.frame_stop[unit])
        before = runs.get(key, (first, last))
        runs[key] = min(before[0], first), max(before[1], last)
    return runs
