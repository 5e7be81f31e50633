"""Media decoded and samples packed for one planned phase: on the rank that runs them, or on rank 0 and shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.loader.central import ship
from trimtab.loader.collate import PackableSample, pack
from trimtab.loader.decode_cache import DecodeCache
from trimtab.loader.decode_worker import DecodeTask
from trimtab.loader.decode_workers import DecodeWorkers
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan

Patches = NDArray[np.float32]


@dataclass(eq=False, kw_only=True)
class PendingMedia:
    """A planned phase whose media is being decoded.

    Attributes:
        plan, batch: of the phase.
        rows: int64 [N], row of the table of each sample.
        units: for each unit row to decode here, its patches or the future of them.
    """

    plan: StepPlan
    batch: BatchMetadata
    rows: NDArray[np.int64]
    units: dict[int, Patches | Future[Patches]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Media:
    """What was decoded.

    Attributes:
        patches: by unit row; zeros for a unit that could not be decoded.
        bad: row of the batch -> why its media could not be decoded.
        decoded: runs of frames decoded here, cache hits left out.
    """

    patches: Mapping[int, Patches]
    bad: Mapping[int, str]
    decoded: int


class PhasePacker:
    """``start`` a planned phase, ``media`` waits for its patches, ``packs`` hands this rank its packs."""

    def __init__(
        self,
        reader: SampleReader,
        workers: DecodeWorkers | None,
        cache: DecodeCache,
        settings: LoaderSettings,
        group: dist.ProcessGroup,
    ) -> None:
        """Pack for the ranks of ``group``.

        Args:
            reader: of the table.
            workers: decode processes; None on a rank that is shipped its packs.
            cache: decoded media.
            settings: ``mode`` decides where packs are made.
            group: gloo group of all ranks.
        """
        self._reader, self._workers, self._cache, self._group = reader, workers, cache, group
        self._central = settings.mode == "central"
        self.ranks = list(range(group.size())) if self._central else [group.rank()]
        """Whose packs are made here."""
        if self._central and group.rank():
            self.ranks = []

    def start(self, plan: StepPlan, batch: BatchMetadata, rows: NDArray[np.int64]) -> PendingMedia:
        """Send the phase's media to the decode processes; ``rows`` (int64 [N]) are its samples' rows of the table."""
        pending = PendingMedia(plan=plan, batch=batch, rows=rows)
        for unit in np.flatnonzero(np.isin(plan.units.rank, self.ranks)).tolist():
            task = self._task(pending, unit)
            cached = self._cache.get(_key(task))
            assert self._workers is not None
            pending.units[unit] = cached if cached is not None else self._workers.submit(task)
        return pending

    def media(self, pending: PendingMedia) -> Media:
        """Wait for the patches; what cannot be decoded is listed, not raised."""
        patches, bad = dict[int, Patches](), dict[int, str]()
        for unit, value in pending.units.items():
            try:
                patches[unit] = value.result() if isinstance(value, Future) else value
            except TrimtabError as error:
                visual = int(pending.plan.units.visual[unit])
                bad.setdefault(int(pending.batch.sample_of_visual[visual]), str(error))
                patches[unit] = self._zeros(pending, unit)
                continue
            self._cache.put(_key(self._task(pending, unit)), patches[unit])
        decoded = sum(isinstance(value, Future) for value in pending.units.values())
        return Media(patches=patches, bad=bad, decoded=decoded)

    def packs(
        self, pending: PendingMedia, media: Media, samples: Sequence[PackableSample]
    ) -> tuple[list[PackedBatch], int]:
        """Packs of this rank by micro-batch, and the tensor bytes it was shipped; a collective in central mode."""
        made = {rank: [self._pack(pending, media, samples, rank, m) for m in range(pending.plan.micro_batches)]
                for rank in self.ranks}  # fmt: skip
        if not self._central:
            return made[self._group.rank()], 0
        everyone = [made[rank] for rank in range(self._group.size())] if made else None
        packs = ship(everyone, self._group)
        return packs, 0 if made else sum(pack.nbytes for pack in packs)

    def _pack(
        self, pending: PendingMedia, media: Media, samples: Sequence[PackableSample], rank: int, micro_batch: int
    ) -> PackedBatch:
        plan = pending.plan
        return pack(
            plan,
            pending.batch,
            rank,
            micro_batch,
            dict(enumerate(samples)),
            [media.patches[unit] for unit in plan.unit_rows(rank, micro_batch).tolist()],
            patch_dim=self._reader.geometry.patch_values,
            pad_token=self._reader.pad_token,
            placeholders=self._reader.placeholders,
        )

    def _task(self, pending: PendingMedia, unit: int) -> DecodeTask:
        units, batch = pending.plan.units, pending.batch
        visual = int(units.visual[unit])
        row = int(batch.sample_of_visual[visual])
        index = visual - int(batch.visual_offsets[row])
        frames = int(units.frame_start[unit]), int(units.frame_stop[unit])
        return self._reader.decode_task(int(pending.rows[row]), index, *frames)

    def _zeros(self, pending: PendingMedia, unit: int) -> Patches:
        units = pending.plan.units
        height, width = pending.batch.grid_thw[int(units.visual[unit]), 1:].tolist()
        frames = int(units.frame_stop[unit] - units.frame_start[unit])
        return np.zeros((frames * height * width, self._reader.geometry.patch_values), dtype=np.float32)


def _key(task: DecodeTask) -> tuple[str, int, int, int, int, int]:
    visual = task.visual
    return (visual.source, visual.grid_t, visual.grid_h, visual.grid_w, task.frame_start, task.frame_stop)
