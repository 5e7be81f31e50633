"""Scans a dataset into a metadata table: headers are probed and texts tokenised, no pixel is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from trimtab.errors import DatasetError, TrimtabError
from trimtab.families.family import Family
from trimtab.loader.conversation import TrainOn, encode
from trimtab.loader.sources import Dataset
from trimtab.media.visual import describe
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import SampleMetadata
from trimtab.schema.table import MetadataTable

_ROWS_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample left out of the table.

    Attributes:
        where: ``file:line`` of its record.
        reason: what is wrong with it, naming the file at fault.
    """

    where: str
    reason: str


@dataclass(frozen=True, eq=False, kw_only=True)
class ScanResult:
    """A finished scan.

    Attributes:
        table: the good samples.
        bad: the others, in dataset order.
        without_loss: samples in the table of which no token enters the loss.
    """

    table: MetadataTable
    bad: tuple[BadSample, ...]
    without_loss: int


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """Scans samples for one model.

    Attributes:
        tokenizer: a fast Transformers tokenizer.
        family: of the model.
        geometry: of the model.
        train_on: which assistant turns enter the loss.
    """

    tokenizer: Any
    family: Family
    geometry: VisionGeometry
    train_on: TrainOn = "assistant"

    def scan(
        self,
        dataset: Dataset,
        *,
        workers: int = 4,
        on_bad_sample: Literal["raise", "skip"] = "raise",
        advance: Callable[[], None] = lambda: None,
    ) -> ScanResult:
        """Scan every sample.

        Args:
            dataset: the conversations.
            workers: threads; probing and tokenising release the interpreter lock.
            on_bad_sample: "raise" stops at the first bad sample, "skip" leaves bad samples out and lists them.
            advance: called after each sample.

        Raises:
            DatasetError: a sample is bad and they are not skipped, or no sample is good.
        """
        samples: list[SampleMetadata] = []
        locations: list[tuple[int, int]] = []
        bad: list[BadSample] = []
        for row, scanned in enumerate(self._scan_rows(dataset, workers)):
            location = dataset.locate(row)
            if isinstance(scanned, SampleMetadata):
                samples.append(scanned)
                locations.append(location)
            else:
                bad.append(BadSample(dataset.where(*location), str(scanned)))
                if on_bad_sample == "raise":
                    raise DatasetError(f"{_described(bad[-1])} (or skip bad samples)") from scanned
            advance()
        if not samples:
            raise DatasetError(f"none of {len(dataset)} samples can be used; the first: {_described(bad[0])}")
        table = MetadataTable.from_samples(
            _with_unique_ids(samples, locations), geometry=self.geometry, files=dataset.files, locations=locations
        )
        without_loss = int((table.loss_tokens == 0).sum())
        return ScanResult(table=table, bad=tuple(bad), without_loss=without_loss)

    def scan_row(self, dataset: Dataset, row: int) -> SampleMetadata:
        """Scan one sample.

        Raises:
            TrimtabError: the record, a text or a file is bad.
        """
        conversation = dataset[row]
        visuals = [describe(v.kind, v.uri, self.geometry, v.data) for v in conversation.visuals]
        encoded = encode(conversation, visuals, self.tokenizer, self.family, self.geometry, train_on=self.train_on)
        offsets = encoded.visual_offsets.tolist()
        return SampleMetadata(
            sample_id=conversation.sample_id,
            text_tokens=encoded.text_tokens,
            loss_tokens=encoded.loss_tokens,
            visuals=tuple(replace(v, token_offset=at) for v, at in zip(visuals, offsets, strict=True)),
        )

    def _scan_rows(self, dataset: Dataset, workers: int) -> Iterator[SampleMetadata | TrimtabError]:
        def attempt(row: int) -> SampleMetadata | TrimtabError:
            try:
                return self.scan_row(dataset, row)
            except TrimtabError as error:
                return error

        with ThreadPoolExecutor(workers) as pool:
            step = workers * _ROWS_IN_FLIGHT  # bounds the results waiting in memory
            for start in range(0, len(dataset), step):
                yield from pool.map(attempt, range(start, min(start + step, len(dataset))))


def _described(bad: BadSample) -> str:
    return bad.reason if bad.reason.startswith(bad.where) else f"{bad.where}: {bad.reason}"


def _with_unique_ids(samples: list[SampleMetadata], locations: list[tuple[int, int]]) -> list[SampleMetadata]:
    counts = Counter(sample.sample_id for sample in samples)
    return [
        sample if counts[sample.sample_id] == 1 else replace(sample, sample_id=f"{sample.sample_id}@{index}:{row}")
        for sample, (index, row) in zip(samples, locations, strict=True)
    ]
