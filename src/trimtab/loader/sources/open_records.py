"""Opens a dataset file by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from trimtab.errors import DatasetError
from trimtab.loader.sources.arrow_folder import ArrowFolder, check_is_dataset
from trimtab.loader.sources.json_files import JsonArrayFile, JsonLinesFile
from trimtab.loader.sources.parquet_file import ParquetRecordFile
from trimtab.loader.sources.record_file import RecordFile
from trimtab.loader.sources.storage import is_url, size_of
from trimtab.loader.sources.tar_shard import TarShard

_KINDS: dict[str, Callable[[str], RecordFile]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonArrayFile,
    ".parquet": ParquetRecordFile,
    ".tar": TarShard,
}


def open_record_file(location: str) -> RecordFile:
    """Open a ``.jsonl``, ``.json`` (one array), ``.parquet`` or ``.tar`` file, or a folder of ``save_to_disk``.

    Raises:
        DatasetError: the file is missing, empty, unreadable or of another type.
    """
    file: RecordFile
    if not is_url(location) and Path(location).is_dir():
        check_is_dataset(Path(location))
        file = ArrowFolder(location)
    else:
        size_of(location)
        suffix = PurePosixPath(location).suffix
        if suffix not in _KINDS:
            raise DatasetError(f"{location}: unknown type {suffix!r}; known: {', '.join(_KINDS)}")
        file = _KINDS[suffix](location)
    if len(file) == 0:
        raise DatasetError(f"{location}: holds no record; remove it from the datasets")
    return file
