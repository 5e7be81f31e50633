"""The dataset a table was scanned from, wherever it lies now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.loader.sources import Dataset, open_dataset
from trimtab.schema.table import MetadataTable


def open_scanned(
    table: MetadataTable,
    data: str | Path | Sequence[str | Path],
    root: str | Path | None,
    *,
    allowed_roots: Sequence[str | Path] = (),
) -> Dataset:
    """Open the dataset files of a table.

    Args:
        table: of a scan.
        data: the dataset files, see ``open_dataset``.
        allowed_roots: see ``open_dataset``.
        root: folder or URL relative media paths start from; by default what the scan was given, and where it was given
            none each file's own folder, so that a dataset may be moved as a whole.

    Raises:
        MetadataError: the table was made from other files.
        DatasetError: a dataset file is missing or malformed.
    """
    dataset = open_dataset(data, root if root is not None else table.root or None, allowed_roots=allowed_roots)
    table.check_files(dataset.files)
    return dataset
