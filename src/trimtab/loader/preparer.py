"""Turns a planned step into packs: text encoded here, media decoded by worker processes, failures contained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from trimtab.errors import LoaderError, TrimtabError
from trimtab.loader.collate import PackableSample, needed_rows, pack
from trimtab.loader.executors.decode_task import Patches
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.materializer import Materializer, PendingMedia
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.step_planner import PlannedStep
from trimtab.runtime.agreement import BadSample
from trimtab.runtime.packed_batch import PackedBatch


@dataclass(frozen=True, eq=False, kw_only=True)
class PendingStep:
    """A step whose media is being decoded.

    Attributes:
        planned: the step.
        media: what was asked for; None on a rank that is sent its packs.
    """

    planned: PlannedStep
    media: PendingMedia | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedStep:
    """A step ready to run.

    Attributes:
        planned: the step.
        packs: for each rank prepared here, its packs by micro-batch.
        bad_samples: (row of the batch, sample id, reason) of samples that could not be loaded.
        decoded: visuals' runs of frames decoded for this step because it asked first.
    """

    planned: PlannedStep
    packs: dict[int, list[PackedBatch]]
    bad_samples: list[BadSample]
    decoded: int


class StepPreparer:
    """``start`` a planned step, ``finish`` it into packs."""

    def __init__(self, reader: SampleReader, executor: MediaExecutor, *, ranks: Iterable[int], skip_bad: bool) -> None:
        """Prepare the packs of ``ranks`` (this rank's own, or all of them for central loading).

        Args:
            reader: the samples' text and visuals.
            executor: decodes media.
            ranks: whose packs are made here.
            skip_bad: contain a bad sample instead of raising.
        """
        self._reader = reader
        self._materializer = Materializer(reader, executor)
        self._ranks = list(ranks)
        self._skip_bad = skip_bad

    def start(self, planned: PlannedStep) -> PendingStep:
        """Ask for this step's media."""
        media = self._materializer.request(
            planned.plan, planned.batch, planned.rows, ranks=self._ranks, step=planned.step
        )
        return PendingStep(planned=planned, media=media)

    def finish(self, pending: PendingStep) -> PreparedStep:
        """Wait for the media and build the packs.

        Raises:
            LoaderError: a sample could not be loaded and bad samples are not skipped; names the sample.
        """
        planned, bad = pending.planned, dict[int, str]()
        assert pending.media is not None
        media = self._materializer.get(pending.media)
        for row, reason in media.bad.items():
            self._note_bad(planned, row, reason, bad)
        samples = self._encode(planned, bad)
        packs = {
            rank: [self._pack(planned, rank, m, samples, media.patches) for m in range(planned.plan.micro_batches)]
            for rank in self._ranks
        }
        self._materializer.release(pending.media)
        listed = [(row, planned.batch.sample_ids[row], reason) for row, reason in sorted(bad.items())]
        return PreparedStep(planned=planned, packs=packs, bad_samples=listed, decoded=media.decoded)

    def drop(self, pending: PendingStep) -> None:
        """A started step will not be finished."""
        if pending.media is not None:
            self._materializer.release(pending.media)

    def _encode(self, planned: PlannedStep, bad: dict[int, str]) -> dict[int, PackableSample]:
        rows = {row for rank in self._ranks for row in needed_rows(planned.plan, planned.batch, rank).tolist()}
        tokens = planned.batch.tokens
        samples = {}
        for row in sorted(rows):
            try:
                samples[row] = self._reader.encode(int(planned.rows[row]), expected_tokens=int(tokens[row]))
            except TrimtabError as error:
                self._note_bad(planned, row, str(error), bad)
                samples[row] = self._reader.filler(int(planned.rows[row]), tokens=int(tokens[row]))
        return samples

    def _note_bad(self, planned: PlannedStep, row: int, reason: str, bad: dict[int, str]) -> None:
        if not self._skip_bad:
            raise LoaderError(
                f"sample {planned.batch.sample_ids[row]}: {reason} (loader.on_bad_sample=skip goes on without it)"
            )
        bad.setdefault(row, reason)

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
