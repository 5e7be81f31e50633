"""Media decoded and samples packed for one planned phase: on the rank that runs them, or on rank 0 and shipped."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.loader.central import ship
from trimtab.loader.collate import PackableSample, pack
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.materializer import Materializer, Media, PendingMedia
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


class PhasePacker:
    """``start`` a planned phase, ``media`` waits for its patches, ``packs`` hands this rank its packs."""

    def __init__(
        self,
        reader: SampleReader,
        executor: MediaExecutor | None,
        settings: LoaderSettings,
        group: dist.ProcessGroup,
    ) -> None:
        """Pack for the ranks of ``group``.

        Args:
            reader: of the table.
            executor: decodes media; None on a rank that is shipped its packs.
            settings: ``mode`` decides where packs are made.
            group: gloo group of all ranks.
        """
        self._reader, self._group = reader, group
        self._materializer = Materializer(reader, executor) if executor else None
        self._phases = itertools.count()
        self._central = settings.mode == "central"
        self.ranks = list(range(group.size())) if self._central else [group.rank()]
        """Whose packs are made here."""
        if self._central and group.rank():
            self.ranks = []

    def start(self, plan: StepPlan, batch: BatchMetadata, rows: NDArray[np.int64]) -> PendingMedia:
        """Ask for the phase's media; ``rows`` (int64 [N]) are its samples' rows of the table."""
        if self._materializer is None:
            return PendingMedia(plan=plan, batch=batch, leases={}, failed={})
        return self._materializer.request(plan, batch, rows, ranks=self.ranks, step=next(self._phases))

    def media(self, pending: PendingMedia) -> Media:
        """Wait for the patches; what cannot be decoded is listed, not raised."""
        return self._materializer.get(pending) if self._materializer else Media(patches={})

    def packs(
        self, pending: PendingMedia, media: Media, samples: Sequence[PackableSample]
    ) -> tuple[list[PackedBatch], int]:
        """Packs of this rank by micro-batch, and the tensor bytes it was shipped; a collective in central mode."""
        made = {rank: [self._pack(pending, media, samples, rank, m) for m in range(pending.plan.micro_batches)]
                for rank in self.ranks}  # fmt: skip
        if self._materializer:
            self._materializer.release(pending)
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
