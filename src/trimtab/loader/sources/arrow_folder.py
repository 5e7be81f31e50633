"""Hugging Face ``datasets`` on disk: a folder that ``save_to_disk`` wrote, read without that library."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trimtab.errors import DatasetError
from trimtab.loader.sources.record_file import as_record
from trimtab.schema.table import DatasetFile

_STATE, _SPLITS = "state.json", "dataset_dict.json"


class ArrowFolder:
    """Rows of memory-mapped Arrow files; the digest is the fingerprint ``datasets`` gave them."""

    def __init__(self, location: str) -> None:
        self.location = location
        folder = Path(location)
        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            files = [folder / entry["filename"] for entry in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(f"{location}: {_STATE} cannot be read ({error}); save the dataset again") from error
        if state.get("_indices_files"):
            raise DatasetError(f"{location}: holds a selection of rows; flatten_indices() it and save it again")
        self._tables = [_mapped(file) for file in files]
        self._stops = np.cumsum([table.num_rows for table in self._tables])
        digest = blake2b(str(state.get("_fingerprint")).encode(), digest_size=8).hexdigest()
        size = sum(file.stat().st_size for file in files)
        self.identity = DatasetFile(folder.name, size, len(self), digest)

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row."""
        index = int(np.searchsorted(self._stops, row, side="right"))
        first = int(self._stops[index - 1]) if index else 0
        return as_record(self._tables[index].slice(row - first, 1).to_pylist()[0], self.where(row))

    def where(self, row: int) -> str:
        """``folder#row`` of a row."""
        return f"{self.location}#{row}"


def check_is_dataset(folder: Path) -> None:
    """Find out whether a folder is one dataset.

    Raises:
        DatasetError: it is none, or several splits.
    """
    if (folder / _SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{_STATE}"))
        raise DatasetError(f"{folder}: holds the splits {', '.join(splits)}; give the folder of one, {folder}/…")
    if not (folder / _STATE).is_file():
        raise DatasetError(f"{folder}: is a folder that datasets' save_to_disk did not write; give a dataset file")


def _mapped(file: Path) -> Any:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file}: not a readable Arrow file ({error}); save the dataset again") from error
