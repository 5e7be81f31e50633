"""Members of uncompressed archives addressed by their place: ``shard.tar#name@offset+size``."""

from __future__ import annotations

import io
import re
from typing import BinaryIO

_PLACE = re.compile(r"^(?P<archive>.+?)#(?P<member>.*)@(?P<offset>\d+)\+(?P<size>\d+)$")


def member_uri(archive: str, member: str, offset: int, size: int) -> str:
    """The URI of ``size`` bytes at ``offset``."""
    return f"{archive}#{member}@{offset}+{size}"


def parse_member(uri: str) -> tuple[str, int, int] | None:
    """Archive, offset and size of a URI that ``member_uri`` made, else None."""
    found = _PLACE.match(uri)
    return (found["archive"], int(found["offset"]), int(found["size"])) if found else None


class MemberStream(io.RawIOBase):
    """Some bytes of another stream as a stream of their own; reads nothing but what is asked for."""

    def __init__(self, stream: BinaryIO, offset: int, size: int) -> None:
        """Read ``stream`` from ``offset``; it stays open when this closes."""
        super().__init__()
        self._stream, self._offset, self._size, self._position = stream, offset, size, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position within the member."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; returns the position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; all that follow where it is negative."""
        left = max(0, self._size - self._position)
        self._stream.seek(self._offset + self._position)
        data = self._stream.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer; returns how many bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
