"""Random access to the records of a dataset file, without holding the file in memory."""

from __future__ import annotations

from typing import Any, Protocol

from trimtab.errors import DatasetError
from trimtab.schema.json_kind import json_kind
from trimtab.schema.table import DatasetFile


class RecordFile(Protocol):
    """A file of records.

    Attributes:
        location: path or URL of the file.
        identity: name, size, rows and digest, by which a changed file is recognised.
    """

    location: str
    identity: DatasetFile

    def __len__(self) -> int: ...

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row.

        Raises:
            DatasetError: the record cannot be read; names file and line.
        """
        ...

    def where(self, row: int) -> str:
        """Names a row: ``file:line`` where the file has lines, counted from 1, else ``file#row``, counted from 0."""
        ...


def as_record(value: Any, where: str) -> dict[str, Any]:
    """A record as it was read.

    Raises:
        DatasetError: it is no object.
    """
    if not isinstance(value, dict):
        raise DatasetError(f"{where}: a record must be a JSON object, found {json_kind(value)}; correct or remove it")
    return value
