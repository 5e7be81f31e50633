"""Random access to the records of a dataset file, without holding the file in memory."""

from __future__ import annotations

import json
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trimtab.errors import DatasetError
from trimtab.schema.table import DatasetFile

_CHUNK_BYTES = 1 << 24
_ROW_GROUPS_HELD = 2
"""Readers that walk the rows side by side straddle a border without reading either group again."""


class RecordFile(Protocol):
    """A file of records.

    Attributes:
        path: of the file.
        identity: name, size, rows and digest, by which a changed file is recognised.
    """

    path: Path
    identity: DatasetFile

    def __len__(self) -> int: ...

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row.

        Raises:
            DatasetError: the record cannot be read; names file and line.
        """
        ...

    def where(self, row: int) -> str:
        """``file:line`` of a row, for errors."""
        ...


def open_record_file(path: Path) -> RecordFile:
    """Open a ``.jsonl``, ``.json`` (one array) or ``.parquet`` file.

    Raises:
        DatasetError: the file is missing, empty, unreadable or of another type.
    """
    if not path.is_file():
        problem = "is not a file" if path.exists() else "no such file"
        raise DatasetError(f"{path}: {problem}; give the path of a JSONL, JSON or Parquet file")
    file: RecordFile
    match path.suffix:
        case ".jsonl" | ".ndjson":
            file = JsonLinesFile(path)
        case ".json":
            file = JsonArrayFile(path)
        case ".parquet":
            file = ParquetRecordFile(path)
        case other:
            raise DatasetError(f"{path}: unknown type {other!r}; known: .jsonl, .ndjson, .json, .parquet")
    if len(file) == 0:
        raise DatasetError(f"{path}: holds no record; remove it from the datasets")
    return file


class JsonLinesFile:
    """JSON lines, found by their byte offsets; the digest is over the whole content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts, self._ends, self._lines, digest = _index_lines(path)
        self.identity = DatasetFile(path.name, path.stat().st_size, len(self), digest)

    def __len__(self) -> int:
        return len(self._starts)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        with self.path.open("rb") as stream:
            stream.seek(int(self._starts[row]))
            line = stream.read(int(self._ends[row] - self._starts[row]))
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"{self.where(row)}: not valid JSON ({error}); correct or remove the line") from error
        return _as_record(value, self.where(row))

    def where(self, row: int) -> str:
        """``file:line`` of a row."""
        return f"{self.path}:{int(self._lines[row])}"


class JsonArrayFile:
    """One JSON array, as LLaVA's datasets come; it can only be read whole, so it is kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = path.read_bytes()
        try:
            self._records = json.loads(content)
        except ValueError as error:
            raise DatasetError(
                f"{path}: not valid JSON ({error}); name the file .jsonl if it holds one record a line"
            ) from error
        if not isinstance(self._records, list):
            raise DatasetError(f"{path}: holds a JSON {type(self._records).__name__}, not an array of records")
        digest = blake2b(content, digest_size=8).hexdigest()
        self.identity = DatasetFile(path.name, len(content), len(self), digest)

    def __len__(self) -> int:
        return len(self._records)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        return _as_record(self._records[row], self.where(row))

    def where(self, row: int) -> str:
        """``file:row`` of a row."""
        return f"{self.path}:{row}"


class ParquetRecordFile:
    """Parquet rows; the two row groups last read are held, the digest is over the footer.

    Random access reads a whole row group for each row outside those held: write media with small row groups.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{path}: not a readable Parquet file ({error}); restore it") from error
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._stops = np.cumsum(np.array(rows, dtype=np.int64))
        self._held: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.identity = DatasetFile(path.name, path.stat().st_size, len(self), _footer_digest(path))

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        group = int(np.searchsorted(self._stops, row, side="right"))
        start = int(self._stops[group - 1]) if group else 0
        with self._lock:
            if group not in self._held:
                if len(self._held) == _ROW_GROUPS_HELD:
                    del self._held[next(iter(self._held))]
                self._held[group] = self._read_group(group)
            table = self._held[group]
        return _as_record(table.slice(row - start, 1).to_pylist()[0], self.where(row))

    def where(self, row: int) -> str:
        """``file:row`` of a row."""
        return f"{self.path}:{row}"

    def _read_group(self, group: int) -> Any:
        try:
            with pq.ParquetFile(self.path) as file:
                return file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{self.path}: row group {group} cannot be read ({error}); restore the file") from error


def _as_record(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DatasetError(f"{where}: a record must be a JSON object, found {type(value).__name__}; correct the line")
    return value


def _index_lines(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], str]:
    """Byte starts, ends and line numbers (from 1) of the lines that are not blank, and the content's digest."""
    ends: list[NDArray[np.int64]] = []
    state, position = blake2b(digest_size=8), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            state.update(chunk)
            ends.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + position)
            position += len(chunk)
    stops = np.concatenate([*ends, np.array([position])]).astype(np.int64)
    starts = np.concatenate([[0], stops[:-1] + 1]).astype(np.int64)
    kept = np.flatnonzero(~_blank(path, starts, stops))
    return starts[kept], stops[kept], kept + 1, state.hexdigest()


def _blank(path: Path, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    blank = starts >= stops
    with path.open("rb") as stream:
        for line in np.flatnonzero(~blank & (stops - starts < len("{} \r\n"))):  # no record is as short
            stream.seek(int(starts[line]))
            blank[line] = not stream.read(int(stops[line] - starts[line])).strip()
    return blank


def _footer_digest(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(-8, 2)
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(-8 - length, 2)
        return blake2b(stream.read(length), digest_size=8).hexdigest()
