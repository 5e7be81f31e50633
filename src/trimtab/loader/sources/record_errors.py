"""One bad record is that record's error, whatever finds it bad: it must not end a scan of millions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.errors import DatasetError, TrimtabError


@contextmanager
def named_record(where: str) -> Iterator[None]:
    """Within, what a library raises becomes an error that names the record.

    Args:
        where: names the record.

    Raises:
        DatasetError: in place of any ``Exception`` but ``TrimtabError``, which names it already, and ``MemoryError``,
            which no record is to blame for.
    """
    try:
        yield
    except (TrimtabError, MemoryError):
        raise
    except Exception as error:
        raise DatasetError(
            f"{where}: cannot be used ({type(error).__name__}: {error}); correct or remove the record"
        ) from error


def check_text(text: str, what: str, where: str) -> None:
    r"""Refuse what JSON can escape (``"\ud83d"``) but neither tokenizers nor files can hold.

    Args:
        text: of a record.
        what: it is, for the message.
        where: names the record.

    Raises:
        DatasetError: the text holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise DatasetError(
            f"{where}: {what} holds {half} at character {error.start}, half of a surrogate pair and no text; "
            "correct it, or remove the record"
        ) from error


def check_path(path: str, where: str) -> None:
    """Refuse what cannot be the path or URL of a visual.

    Raises:
        DatasetError: it holds half of a surrogate pair or a NUL character.
    """
    check_text(path, f"the path {path!a}", where)
    if "\0" in path:
        raise DatasetError(f"{where}: the path {path!r} holds a NUL character, which no path does; correct it")
