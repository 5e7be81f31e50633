"""Opens what a source URI names.

A URI is a path, ``file://…``, any other fsspec URL, ``shard.tar#member`` (``@offset+size`` behind it spares looking for
the member), or ``file.parquet#row/column`` with ``/index`` behind it where the column holds lists.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlparse

from trimtab.errors import MediaError
from trimtab.media.archive_member import MemberStream, parse_member
from trimtab.media.url_problem import url_problem

_PARQUET_BATCH_ROWS = 16
_MEMBER_READ_BYTES = 1 << 16
_URL_BLOCK_BYTES = 1 << 18
"""Read ahead from URLs: a header fits, and a whole file takes few requests."""


@contextmanager
def open_source(uri: str, data: bytes | None = None) -> Iterator[str | BinaryIO]:
    """A local path, or an open binary stream where the media is not a file of its own.

    Args:
        uri: see the module.
        data: the encoded bytes, where the caller has them already; the URI then only names them in errors.

    Raises:
        MediaError: nothing readable is there.
    """
    if data is not None:
        yield io.BytesIO(data)
        return
    path, member = local_path(uri), parse_member(uri)
    if member is not None and (path is None or not path.exists()):
        archive, offset, size = member
        with open_source(archive) as source, _as_stream(source) as stream:
            yield io.BufferedReader(MemberStream(stream, offset, size), _MEMBER_READ_BYTES)
    elif path is None:
        with _open_url(uri) as stream:
            yield stream
    elif path.is_file():
        yield str(path)
    elif path.exists():
        raise MediaError(f"{uri}: not a regular file; give the path of an image or video file")
    elif "#" in path.name or "#" in str(path):
        yield io.BytesIO(_read_member(uri))
    else:
        raise MediaError(f"{uri}: no such file; restore it or remove its sample")


@contextmanager
def _as_stream(source: str | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(source, str):
        with open(source, "rb") as stream:
            yield stream
    else:
        yield source


def local_path(uri: str) -> Path | None:
    """The path of a local URI, or None for a remote one."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return Path(uri)
    if scheme == "file":
        return Path(unquote(urlparse(uri).path))
    return None


@contextmanager
def _open_url(uri: str) -> Iterator[BinaryIO]:
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise MediaError(f"{uri}: reading URLs needs fsspec; pip install fsspec") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(uri)
        with filesystem.open(path, "rb", block_size=_URL_BLOCK_BYTES) as stream:
            yield stream
    except (OSError, ValueError, ImportError) as error:
        raise MediaError(f"{uri}: cannot be opened {url_problem(error)}") from error


def _read_member(uri: str) -> bytes:
    container, _, member = uri.rpartition("#")
    path = local_path(container)
    if path is None or not path.is_file():
        raise MediaError(f"{uri}: no such file as {container}; restore it or remove its samples")
    if path.suffix == ".parquet":
        return _read_cell(uri, path, member)
    if ".tar" in path.suffixes or path.suffix == ".tgz":
        return _read_tar_member(uri, path, member)
    raise MediaError(
        f"{uri}: {path.name} is neither a tar nor a Parquet file; media inside it is read through its dataset"
    )


def _read_tar_member(uri: str, path: Path, member: str) -> bytes:
    try:
        with tarfile.open(path) as archive:
            stream = archive.extractfile(member)
            if stream is None:
                raise MediaError(f"{uri}: {member} is not a regular member of the archive; check the name")
            return stream.read()
    except KeyError as error:
        raise MediaError(f"{uri}: the archive has no member {member}; check the name") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise MediaError(f"{uri}: the archive cannot be read ({error}); restore it") from error


def _read_cell(uri: str, path: Path, address: str) -> bytes:
    import pyarrow.parquet as pq  # decode processes start faster without it, and few read Parquet

    row_text, _, column_path = address.partition("/")
    column, _, index_text = column_path.partition("/")
    try:
        row, index = int(row_text), int(index_text or 0)
        cell = _cell(pq.ParquetFile(path), row, column)
        if isinstance(cell, list):
            cell = cell[index]
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise MediaError(
            f"{uri}: no such cell ({error}); the address is file.parquet#row/column, /index behind it for a list"
        ) from error
    if isinstance(cell, dict):
        cell = cell.get("bytes")
    if not isinstance(cell, bytes):
        raise MediaError(f"{uri}: the cell holds {type(cell).__name__}, not bytes; check the column")
    return cell


def _cell(file: Any, row: int, column: str) -> Any:
    if column not in file.schema_arrow.names:
        raise KeyError(f"the file has no column {column!r}")
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if 0 <= row < rows:
            batches = file.iter_batches(batch_size=_PARQUET_BATCH_ROWS, row_groups=[group], columns=[column])
            for batch in batches:
                if row < len(batch):
                    return batch.column(0)[row].as_py()
                row -= len(batch)
        row -= rows
    raise IndexError("the file has fewer rows")
