"""JSON datasets: one record a line, or one array."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import DatasetError
from trimtab.loader.sources.record_file import as_record
from trimtab.loader.sources.storage import name_of, open_file, size_of
from trimtab.schema.json_kind import json_kind
from trimtab.schema.table import DatasetFile

_CHUNK_BYTES = 1 << 24


class JsonLinesFile:
    """JSON lines, found by their byte offsets; the digest is over the whole content."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._starts, self._ends, self._lines, digest = _index_lines(location)
        self.identity = DatasetFile(name_of(location), size_of(location), len(self), digest)

    def __len__(self) -> int:
        return len(self._starts)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        with open_file(self.location) as stream:
            stream.seek(int(self._starts[row]))
            line = stream.read(int(self._ends[row] - self._starts[row]))
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"{self.where(row)}: not valid JSON ({error}); correct or remove the line") from error
        return as_record(value, self.where(row))

    def where(self, row: int) -> str:
        """``file:line`` of a row."""
        return f"{self.location}:{int(self._lines[row])}"


class JsonArrayFile:
    """One JSON array, as LLaVA's datasets come; it can only be read whole, so it is kept in memory."""

    def __init__(self, location: str) -> None:
        self.location = location
        content = _read_all(location)
        try:
            self._records = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"{location}: not valid JSON ({error}); name the file .jsonl if it holds one record a line"
            ) from error
        if not isinstance(self._records, list):
            raise DatasetError(
                f"{location}: must hold a JSON array of records, found {json_kind(self._records)}; correct it"
            )
        digest = blake2b(content, digest_size=8).hexdigest()
        self.identity = DatasetFile(name_of(location), len(content), len(self), digest)

    def __len__(self) -> int:
        return len(self._records)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        return as_record(self._records[row], self.where(row))

    def where(self, row: int) -> str:
        """``file#row`` of a row."""
        return f"{self.location}#{row}"


def _read_all(location: str) -> bytes:
    with open_file(location) as stream:
        return stream.read()


def _index_lines(location: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], str]:
    """Byte starts, ends and line numbers (from 1) of the lines that are not blank, and the content's digest."""
    ends: list[NDArray[np.int64]] = []
    state, position = blake2b(digest_size=8), 0
    with open_file(location) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            state.update(chunk)
            ends.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + position)
            position += len(chunk)
    stops = np.concatenate([*ends, np.array([position])]).astype(np.int64)
    starts = np.concatenate([[0], stops[:-1] + 1]).astype(np.int64)
    kept = np.flatnonzero(~_blank(location, starts, stops))
    return starts[kept], stops[kept], kept + 1, state.hexdigest()


def _blank(location: str, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    blank = starts >= stops
    with open_file(location) as stream:
        for line in np.flatnonzero(~blank & (stops - starts < len("{} \r\n"))):  # no record is as short
            stream.seek(int(starts[line]))
            blank[line] = not stream.read(int(stops[line] - starts[line])).strip()
    return blank
