"""Parquet datasets: a row is a record."""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.errors import DatasetError
from trimtab.loader.sources.record_file import as_record
from trimtab.loader.sources.storage import name_of, open_file, size_of
from trimtab.schema.table import DatasetFile

_ROW_GROUPS_HELD = 2
"""Readers that walk the rows side by side straddle a border without reading either group again."""


class ParquetRecordFile:
    """Parquet rows; the two row groups last read are held, the digest is over the footer.

    Random access reads a whole row group for each row outside those held: write media with small row groups.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            with open_file(location) as stream:
                metadata = pq.read_metadata(stream)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{location}: not a readable Parquet file ({error}); restore it") from error
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._stops = np.cumsum(np.array(rows, dtype=np.int64))
        self._held: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.identity = DatasetFile(name_of(location), size_of(location), len(self), _footer_digest(location))

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
        return as_record(table.slice(row - start, 1).to_pylist()[0], self.where(row))

    def where(self, row: int) -> str:
        """``file#row`` of a row."""
        return f"{self.location}#{row}"

    def _read_group(self, group: int) -> Any:
        try:
            with open_file(self.location) as stream, pq.ParquetFile(stream) as file:
                return file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(
                f"{self.location}: row group {group} cannot be read ({error}); restore the file"
            ) from error


def _footer_digest(location: str) -> str:
    with open_file(location) as stream:
        stream.seek(-8, 2)
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(-8 - length, 2)
        return blake2b(stream.read(length), digest_size=8).hexdigest()
