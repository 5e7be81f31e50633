"""Turns a planned step into packs: text encoded here, media decoded by worker processes, failures contained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.errors import LoaderError, TrimtabError
from trimtab.loader.collate import PackableSample, needed_rows, pack
from trimtab.loader.decode_cache import DecodeCache
from trimtab.loader.decode_worker import DecodeTask
from trimtab.loader.decode_workers import DecodeWorkers
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.step_planner import PlannedStep
from trimtab.runtime.agreement import BadSample
from trimtab.runtime.packed_batch import PackedBatch

Patches = NDArray[np.float32]


@dataclass(eq=False, kw_only=True)
class PendingStep:
    """A step whose media is being decoded.

    Attributes:
        planned: the step.
        units: for each unit row to decode here, its patches or the future of them.
    """

    planned: PlannedStep
    units: dict[int, Patches | Future[Patches]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedStep:
    """A step ready to run.

    Attributes:
        planned: the step.
        packs: for each rank prepared here, its packs by micro-batch.
        bad_samples: (row of the batch, sample id, reason) of samples that could not be loaded.
        decoded: visuals' runs of frames decoded here, cache hits left out.
    """

    planned: PlannedStep
    packs: dict[int, list[PackedBatch]]
    bad_samples: list[BadSample]
    decoded: int


class StepPreparer:
    """``start`` a planned step, ``finish`` it into packs."""

    def __init__(
        self, reader: SampleReader, workers: DecodeWorkers, cache: DecodeCache, *, ranks: Iterable[int], skip_bad: bool
    ) -> None:
        """Prepare the packs of ``ranks`` (this rank's own, or all of them for central loading).

        Args:
            reader: the samples' text and visuals.
            workers: decode processes.
            cache: decoded media.
            ranks: whose packs are made here.
            skip_bad: contain a bad sample instead of raising.
        """
        self._reader = reader
        self._workers = workers
        self._cache = cache
        self._ranks = list(ranks)
        self._skip_bad = skip_bad

    def start(self, planned: PlannedStep) -> PendingStep:
        """Send this step's media to the decode processes."""
        pending = PendingStep(planned=planned)
        units = planned.plan.units
        for row in np.flatnonzero(np.isin(units.rank, self._ranks)).tolist():
            task = self._task(planned, row)
            cached = self._cache.get(_key(task))
            pending.units[row] = cached if cached is not None else self._workers.submit(task)
        return pending

    def finish(self, pending: PendingStep) -> PreparedStep:
        """Wait for the media and build the packs.

        Raises:
            LoaderError: a sample could not be loaded and bad samples are not skipped; names the sample.
        """
        planned, bad = pending.planned, dict[int, str]()
        patches = {row: self._patches(planned, row, value, bad) for row, value in pending.units.items()}
        samples = self._encode(planned, bad)
        packs = {
            rank: [self._pack(planned, rank, m, samples, patches) for m in range(planned.plan.micro_batches)]
            for rank in self._ranks
        }
        decoded = sum(isinstance(value, Future) for value in pending.units.values())
        listed = [(row, planned.batch.sample_ids[row], reason) for row, reason in sorted(bad.items())]
        return PreparedStep(planned=planned, packs=packs, bad_samples=listed, decoded=decoded)

    def _task(self, planned: PlannedStep, unit: int) -> DecodeTask:
        units, batch = planned.plan.units, planned.batch
        visual = int(units.visual[unit])
        row = int(batch.sample_of_visual[visual])
        return self._reader.decode_task(
            int(planned.rows[row]),
            visual - int(batch.visual_offsets[row]),
            int(units.frame_start[unit]),
            int(units.frame_stop[unit]),
        )

    def _patches(
        self, planned: PlannedStep, unit: int, value: Patches | Future[Patches], bad: dict[int, str]
    ) -> Patches:
        if not isinstance(value, Future):
            return value
        visual = int(planned.plan.units.visual[unit])
        row = int(planned.batch.sample_of_visual[visual])
        try:
            patches = value.result()
        except TrimtabError as error:
            self._note_bad(planned, row, error, bad)
            frames = int(planned.plan.units.frame_stop[unit] - planned.plan.units.frame_start[unit])
            height, width = planned.batch.grid_thw[visual, 1:].tolist()
            return np.zeros((frames * height * width, self._reader.geometry.patch_values), dtype=np.float32)
        self._cache.put(_key(self._task(planned, unit)), patches)
        return patches

    def _encode(self, planned: PlannedStep, bad: dict[int, str]) -> dict[int, PackableSample]:
        rows = {row for rank in self._ranks for row in needed_rows(planned.plan, planned.batch, rank).tolist()}
        tokens = planned.batch.tokens
        samples = {}
        for row in sorted(rows):
            try:
                samples[row] = self._reader.encode(int(planned.rows[row]), expected_tokens=int(tokens[row]))
            except TrimtabError as error:
                _refuse_sharded(planned, row, error)
                self._note_bad(planned, row, error, bad)
                samples[row] = self._reader.filler(int(planned.rows[row]), tokens=int(tokens[row]))
        return samples

    def _note_bad(self, planned: PlannedStep, row: int, error: TrimtabError, bad: dict[int, str]) -> None:
        if not self._skip_bad:
            raise LoaderError(
                f"sample {planned.batch.sample_ids[row]}: {error} (loader.on_bad_sample=skip trains on without it)"
            ) from error
        bad.setdefault(row, str(error))

    def _pack(
        self,
        planned: PlannedStep,
        rank: int,
        micro_batch: int,
        samples: Mapping[int, PackableSample],
        patches: Mapping[int, Patches],
    ) -> PackedBatch:
        unit_rows = planned.plan.unit_rows(rank, micro_batch).tolist()
        return pack(
            planned.plan,
            planned.batch,
            rank,
            micro_batch,
            samples,
            [patches[row] for row in unit_rows],
            patch_dim=self._reader.geometry.patch_values,
            pad_token=self._reader.pad_token,
            placeholders=self._reader.placeholders,
        )


def _refuse_sharded(planned: PlannedStep, row: int, error: TrimtabError) -> None:
    """Other ranks cut this sample where its text says its images are; one that cannot read it cannot follow them."""
    degree = int(planned.plan.degree[row])
    if degree > 1:
        raise LoaderError(
            f"sample {planned.batch.sample_ids[row]}, shared by {degree} ranks: {error}; it cannot be replaced once "
            "they share it, so mend or remove it, or train with balance.max_degree=1"
        ) from error


def without_loss(packed: PackedBatch, rows: list[int]) -> PackedBatch:
    """The same pack with the loss weights of the given rows set to 0."""
    kept = ~torch.isin(packed.loss_rows, torch.tensor(rows))
    return replace(packed, loss_weights=packed.loss_weights * kept)


def _key(task: DecodeTask) -> tuple[str, int, int, int, int, int]:
    visual = task.visual
    return (visual.source, visual.grid_t, visual.grid_h, visual.grid_w, task.frame_start, task.frame_stop)
