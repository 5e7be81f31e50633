"""Files that commands write: refused before long work where they cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trimtab.errors import SettingsError


def check_writable(path: str | Path, *, read: Iterable[str | Path] = (), replaced: bool = False) -> None:
    """Find out before long work whether a file could be written; makes neither it nor a folder.

    Args:
        path: of the file.
        read: what the same command reads, which it must not write over; what is no file plays no part.
        replaced: it is written aside and then put in its place, which devices (``/dev/null``) and pipes must keep.

    Raises:
        SettingsError: it could not, or is one of these.
    """
    target = Path(path)
    if target.is_file() and any(Path(source).is_file() and target.samefile(source) for source in read):
        raise SettingsError(f"{target}: the command reads this file and would write over it; choose another path")
    try:
        if not target.parent.is_dir():
            raise SettingsError(f"{target}: cannot be written (there is no folder {target.parent}); make it first")
        if target.is_dir():
            raise IsADirectoryError("it is a folder")
        if target.exists() and not target.is_file():
            _check_stream(target, replaced)
            return
        partial = partial_of(target)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise SettingsError(f"{target}: cannot be written ({error}); choose another path") from error


def _check_stream(target: Path, replaced: bool) -> None:
    """Of a device or pipe, beside which nothing can be written."""
    if replaced:
        raise OSError("it is no file but a device or pipe")
    if not os.access(target, os.W_OK):
        raise PermissionError("you may not write to it")


def partial_of(target: Path) -> Path:
    """Where a file is written until it is whole."""
    return target.with_name(f"{target.name}.partial")


def write_output(path: str | Path, text: str) -> None:
    """Write a text file.

    Raises:
        SettingsError: it cannot be written.
    """
    check_writable(path)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error}); free space or choose another path") from error
