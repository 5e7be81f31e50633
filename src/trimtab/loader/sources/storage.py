"""Files by path or fsspec URL: opened for reading ranges, with what names and identifies them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trimtab.errors import DatasetError
from trimtab.media.url_problem import url_problem

_BLOCK_BYTES = 1 << 20
"""Read ahead from URLs: records are short, and a Parquet column is asked for as a whole."""


def is_url(location: str) -> bool:
    """Whether a location is an fsspec URL rather than a path."""
    return "://" in location


def absolute(location: str | Path) -> str:
    """A URL as it is; a path made absolute."""
    return str(location) if is_url(str(location)) else str(Path(location).absolute())


def name_of(location: str) -> str:
    """File name without its folder."""
    return location.rstrip("/").rpartition("/")[2]


def name_in(location: str, where: str) -> str:
    """What names a record of a file in errors, without the file's folder."""
    return name_of(location) + where.removeprefix(location)


def folder_of(location: str) -> str:
    """The folder of a file; a URL's stays a URL."""
    return location.rpartition("/")[0] or "/"


def joined(folder: str, relative: str) -> str:
    """A path within a folder, which may be a URL."""
    return f"{folder.rstrip('/')}/{relative}"


def size_of(location: str) -> int:
    """Bytes of a file.

    Raises:
        DatasetError: there is no such file.
    """
    if not is_url(location):
        path = Path(location)
        if not path.is_file():
            problem = "is not a file" if path.exists() else "no such file"
            raise DatasetError(f"{path}: {problem}; give the path of a JSONL, JSON, Parquet or tar file")
        return path.stat().st_size
    with _errors_of(location):
        filesystem, path_there = _fsspec(location).core.url_to_fs(location)
        return int(filesystem.size(path_there))


def check_root(option: str, root: str | Path | None) -> None:
    """Look for the folder that relative media paths start from; URLs are left to those who read from them.

    Args:
        option: how messages call it.
        root: as it was given.

    Raises:
        DatasetError: there is no such folder.
    """
    if root is None or is_url(str(root)) or Path(root).is_dir():
        return
    problem = "is not a folder" if Path(root).exists() else "no such folder"
    raise DatasetError(f"{option}{root}: {problem}; give the folder that relative media paths start from, or none")


@contextmanager
def open_file(location: str) -> Iterator[BinaryIO]:
    """The file, seekable; of a URL only the ranges read are fetched.

    Raises:
        DatasetError: it cannot be opened or read.
    """
    if not is_url(location):
        with open(location, "rb") as stream:
            yield stream
        return
    with _errors_of(location):
        filesystem, path_there = _fsspec(location).core.url_to_fs(location)
        with filesystem.open(path_there, "rb", block_size=_BLOCK_BYTES) as stream:
            yield stream


def _fsspec(location: str) -> Any:
    try:
        return importlib.import_module("fsspec")
    except ImportError as error:
        raise DatasetError(f"{location}: reading URLs needs fsspec; pip install fsspec") from error


@contextmanager
def _errors_of(location: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{location}: cannot be read {url_problem(error)}") from error
