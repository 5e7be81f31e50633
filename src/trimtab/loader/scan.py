"""Scans a dataset into a metadata table: headers are probed and texts tokenised, no pixel is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from trimtab.errors import DatasetError, TrimtabError
from trimtab.families.family import Family
from trimtab.loader.conversation import TrainOn, encode
from trimtab.loader.scan_journal import ScanJournal, sample_key
from trimtab.loader.scan_workers import Place, map_rows
from trimtab.loader.sources import Conversation, Dataset
from trimtab.loader.sources.record_errors import named_record
from trimtab.media.probe import large_images_unwarned
from trimtab.media.visual import describe
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import SampleMetadata
from trimtab.schema.printable import printable
from trimtab.schema.table import MetadataTable


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample left out of the table.

    Attributes:
        where: ``file:line`` (from 1) or ``file#row`` (from 0) of its record.
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
        place: Place = "threads",
        ray_address: str | None = None,
        journal: Path | None = None,
        on_bad_sample: Literal["raise", "skip"] = "raise",
        advance: Callable[[], None] = lambda: None,
    ) -> ScanResult:
        """Scan every sample.

        Args:
            dataset: the conversations.
            workers: samples scanned at once.
            place: see ``map_rows``.
            ray_address: see ``map_rows``.
            journal: file that keeps what was found, so that a later scan of the same or a grown dataset skips it.
            on_bad_sample: "raise" stops at the first bad sample, "skip" leaves bad samples out and lists them.
            advance: called after each sample.

        Raises:
            DatasetError: a sample is bad and they are not skipped, or no sample is good.
        """
        samples: list[SampleMetadata] = []
        locations: list[tuple[int, int]] = []
        bad: list[BadSample] = []
        rows = self._scan_rows(dataset, workers, place, ray_address, journal)
        with large_images_unwarned(), closing(rows) as scans:
            for row, scanned in enumerate(scans):
                location = dataset.locate(row)
                if isinstance(scanned, SampleMetadata):
                    samples.append(scanned)
                    locations.append(location)
                else:
                    where = dataset.where(*location)
                    bad.append(BadSample(printable(where), printable(str(scanned).removeprefix(f"{where}: "))))
                    if on_bad_sample == "raise":
                        raise DatasetError(f"{bad[-1].where}: {bad[-1].reason} (or skip bad samples)") from scanned
                advance()
        if not samples:
            many = (
                "the only sample cannot be used"
                if len(bad) == 1
                else f"none of {len(bad)} samples can be used; the first"
            )
            raise DatasetError(f"{many}: {bad[0].where}: {bad[0].reason}")
        table = MetadataTable.from_samples(
            _with_unique_ids(samples, [(dataset.name(*place), place[0]) for place in locations]),
            geometry=self.geometry,
            files=dataset.files,
            locations=locations,
            root=dataset.root or "",
        )
        without_loss = int((table.loss_tokens == 0).sum())
        return ScanResult(table=table, bad=tuple(bad), without_loss=without_loss)

    def scan_row(self, dataset: Dataset, row: int) -> SampleMetadata:
        """Scan one sample.

        Raises:
            TrimtabError: the record, a text or a file is bad.
        """
        return self.scan_conversation(dataset[row])

    def scan_conversation(self, conversation: Conversation) -> SampleMetadata:
        """Scan a sample that was read.

        Raises:
            TrimtabError: a text or a file is bad.
        """
        visuals = [describe(v.kind, v.uri, self.geometry, v.data) for v in conversation.visuals]
        encoded = encode(conversation, visuals, self.tokenizer, self.family, self.geometry, train_on=self.train_on)
        offsets = encoded.visual_offsets.tolist()
        return SampleMetadata(
            sample_id=conversation.sample_id,
            text_tokens=encoded.text_tokens,
            loss_tokens=encoded.loss_tokens,
            visuals=tuple(replace(v, token_offset=at) for v, at in zip(visuals, offsets, strict=True)),
        )

    def fingerprint(self) -> str:
        """Everything but the sample that decides what a scan finds."""
        tokenizer = self.tokenizer
        model = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(tokenizer)
        decisive = (self.family.name, self.geometry, self.train_on, tokenizer.chat_template, model)
        return blake2b(repr(decisive).encode(), digest_size=16).hexdigest()

    def _scan_rows(
        self, dataset: Dataset, workers: int, place: Place, ray_address: str | None, path: Path | None
    ) -> Generator[SampleMetadata | TrimtabError, None, None]:
        fingerprint = self.fingerprint() if path else ""
        journal = ScanJournal(path, fingerprint=fingerprint) if path else None
        known = [journal.known(dataset, row) if journal is not None else None for row in range(len(dataset))]
        fresh = [row for row, sample in enumerate(known) if sample is None]
        scan = _RowScan(self, dataset, fresh, fingerprint)
        results = map_rows(scan, len(fresh), workers=workers, place=place, ray_address=ray_address)
        # closed here: collected later, in any thread, it would wait for its own threads, which can deadlock
        with closing(results) as scanned, closing(journal) if journal is not None else nullcontext():
            for sample in known:
                if sample is not None:
                    yield sample
                    continue
                key, found = next(scanned)
                if journal is not None and isinstance(found, SampleMetadata):
                    journal.add(key, found)
                yield found


@dataclass(frozen=True, eq=False)
class _RowScan:
    """Scans the n-th of some rows; travels to other processes.

    Attributes:
        fingerprint: see ``ScanJournal``; without one no keys are made.
    """

    scanner: Scanner
    dataset: Dataset
    rows: list[int]
    fingerprint: str

    def __call__(self, index: int) -> tuple[str, SampleMetadata | TrimtabError]:
        row = self.rows[index]
        try:
            with named_record(self.dataset.where(*self.dataset.locate(row))):
                conversation = self.dataset[row]
                key = sample_key(conversation, self.fingerprint) if self.fingerprint else ""
                return key, self.scanner.scan_conversation(conversation)
        except TrimtabError as error:
            return "", error


def _with_unique_ids(samples: list[SampleMetadata], places: list[tuple[str, int]]) -> list[SampleMetadata]:
    """Samples of a repeated id get their record's place behind it, and its file's index where that repeats, too.

    Where another sample is called just that, the place follows until the name is nobody's.
    """
    names = [sample.sample_id for sample in samples]
    for behind in ([place for place, _ in places], [f"file{index}" for _, index in places]):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 or name == more else f"{name}@{more}"
            for name, more in zip(names, behind, strict=True)
        ]
    names = _with_free_names(names, [place for place, _ in places])
    return [replace(sample, sample_id=name) for sample, name in zip(samples, names, strict=True)]


def _with_free_names(names: list[str], places: list[str]) -> list[str]:
    taken, met, free = set(names), set[str](), []
    for name, place in zip(names, places, strict=True):
        chosen = name
        if name in met:
            while chosen in taken:
                chosen = f"{chosen}@{place}"
        met.add(name)
        taken.add(chosen)
        free.append(chosen)
    return free
