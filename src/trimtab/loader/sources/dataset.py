"""A dataset of one or more files, as conversations."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from trimtab.errors import DatasetError
from trimtab.loader.sources.allowed_roots import AllowedRoots
from trimtab.loader.sources.forms import read_conversation
from trimtab.loader.sources.normal_form import Conversation
from trimtab.loader.sources.open_records import open_record_file
from trimtab.loader.sources.record_errors import check_path, named_record
from trimtab.loader.sources.record_file import RecordFile
from trimtab.loader.sources.storage import absolute, folder_of, name_in
from trimtab.schema.table import DatasetFile


class Dataset:
    """Conversations of files one after another; rows are read when asked for.

    Attributes:
        root: folder relative media paths start from; each file's own folder where None.
        allowed: where media may lie.
    """

    def __init__(self, files: Sequence[RecordFile], root: str | None, allowed: AllowedRoots) -> None:
        self._files, self.root = tuple(files), root
        self.allowed = allowed
        self._stops = np.cumsum([len(file) for file in files])

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, row: int) -> Conversation:
        """The conversation of a row, counted over all files."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside a dataset of {len(self)}")
        return self.conversation(*self.locate(row))

    @property
    def files(self) -> tuple[DatasetFile, ...]:
        """Name, size, rows and digest of each file."""
        return tuple(file.identity for file in self._files)

    def locate(self, row: int) -> tuple[int, int]:
        """File index and row within that file of a row counted over all files."""
        index = int(np.searchsorted(self._stops, row, side="right"))
        return index, row - (int(self._stops[index - 1]) if index else 0)

    def where(self, file_index: int, row: int) -> str:
        """``file:line`` or ``file#row`` of a row of one file, for errors."""
        return self._files[file_index].where(row)

    def name(self, file_index: int, row: int) -> str:
        """The same without the file's folder: the name of a sample that has none of its own."""
        return name_in(self._files[file_index].location, self.where(file_index, row))

    def conversation(self, file_index: int, row: int) -> Conversation:
        """The conversation of a row of one file: ``dataset_index`` and ``dataset_row`` of a metadata table.

        Raises:
            DatasetError: the record cannot be read; names file and line, and the remedy.
        """
        file = self._files[file_index]
        root, where = self.root or folder_of(file.location), file.where(row)
        with named_record(where):
            return read_conversation(file.record(row), where, root, (file.location, row), self.allowed)

    def digest(self) -> str:
        """Sixteen hex digits over the files' names, sizes, rows and digests; ranks compare them."""
        return blake2b(repr(self.files).encode(), digest_size=8).hexdigest()


def open_dataset(
    paths: str | Path | Sequence[str | Path],
    root: str | Path | None = None,
    *,
    allowed_roots: Sequence[str | Path] = (),
) -> Dataset:
    """Open dataset files as one dataset; the form of each record is recognised.

    Args:
        paths: one or several, in order: JSONL, JSON or Parquet files, WebDataset shards (``.tar``), fsspec URLs of
            these, or folders that ``datasets`` saved.
        root: folder or URL relative media paths start from; each file's own folder by default.
        allowed_roots: folders and URLs the dataset's media must lie in; anywhere by default.

    Raises:
        DatasetError: no file is given, or one is missing, empty or of unknown type.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise DatasetError("no dataset file is given; name at least one JSONL, JSON, Parquet or tar file")
    for path in [*listed, *([] if root is None else [root])]:
        check_path(str(path), "the dataset")  # the table names it
    files = [open_record_file(absolute(path)) for path in listed]
    return Dataset(files, None if root is None else absolute(root), AllowedRoots(allowed_roots))
