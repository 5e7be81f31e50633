"""What earlier scans found, so that a scan that was stopped goes on and a grown dataset costs only what is new.

One JSON line a sample, appended as samples are scanned: a line cut off or damaged is scanned again. A sample counts as
known while its record, the size and time of its local media files, the tokenizer and the model's geometry are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from trimtab.errors import MetadataError, TrimtabError
from trimtab.loader.sources import Conversation, Dataset
from trimtab.media.source import local_path
from trimtab.schema.metadata import SampleMetadata, Visual


class ScanJournal:
    """Samples by the digest of all they depend on."""

    def __init__(self, path: Path, *, fingerprint: str) -> None:
        """Read what is there; lines of another tokenizer, model or setting stay but are not used.

        Args:
            path: of the journal; made if missing.
            fingerprint: of everything but the record that decides what a scan finds.

        Raises:
            MetadataError: it cannot be read or written.
        """
        self._fingerprint, self._path = fingerprint, path
        self._known: dict[str, Any] = {}
        try:
            path.touch()
            line = "\n"
            with path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
            self._stream: IO[str] = path.open("a", encoding="utf-8", buffering=1)  # a line a sample, whole
            if not line.endswith("\n"):  # a crash cut it off
                self._stream.write("\n")
        except OSError as error:
            raise self._unwritten(error) from error

    def known(self, dataset: Dataset, row: int) -> SampleMetadata | None:
        """The sample an earlier scan found in a row, under its present id; None where it is to be scanned."""
        if not self._known:
            return None
        try:
            conversation = dataset[row]
        except TrimtabError:
            return None  # scanning will tell
        found = self._known.get(sample_key(conversation, self._fingerprint))
        if found is None:
            return None
        try:
            visuals = tuple(Visual(**visual) for visual in found["visuals"])
            return SampleMetadata(**{**found, "visuals": visuals, "sample_id": conversation.sample_id})
        except (TypeError, LookupError):
            return None  # damaged

    def add(self, key: str, sample: SampleMetadata) -> None:
        """Note what was found under a ``sample_key``.

        Raises:
            MetadataError: it cannot be written.
        """
        try:
            self._stream.write(json.dumps([key, asdict(sample)], separators=(",", ":")) + "\n")
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Let go of the file; every line is written by now, or was told to be lost."""
        with contextlib.suppress(OSError):
            self._stream.close()

    def _unwritten(self, error: OSError) -> MetadataError:
        return MetadataError(
            f"{self._path}: the scan's journal cannot be kept ({error.strerror}); free space, choose another --out, or "
            "scan with --no-journal"
        )

    def _read(self, line: str) -> None:
        try:
            key, sample = json.loads(line)
            self._known[key] = sample
        except (ValueError, TypeError, RecursionError):
            pass  # cut off, or damaged: it will be scanned again


def sample_key(conversation: Conversation, fingerprint: str) -> str:
    """Digest of all that a sample's scan depends on."""
    state = blake2b(fingerprint.encode(), digest_size=16)
    state.update(repr(conversation.messages).encode())
    if untrained := [turn for turn, message in enumerate(conversation.messages) if not message.trained]:
        state.update(f"untrained {untrained}".encode())
    for visual in conversation.visuals:
        state.update(f"{visual.kind} {visual.uri} {_stamp(visual.uri)}".encode())
        state.update(visual.data or b"")
    return state.hexdigest()


def _stamp(uri: str) -> str:
    path = local_path(uri.partition("#")[0])
    if path is None:
        return ""
    try:
        status = os.stat(path)
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
