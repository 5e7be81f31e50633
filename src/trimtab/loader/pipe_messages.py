"""Values over a pipe to a process of our own: a length, then the pickle."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

_LENGTH = struct.Struct("<q")


def write_message(stream: IO[bytes], value: Any) -> None:
    """Write one pickled value; only ever read by the process at the other end of the pipe."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Read one value; raises EOFError where the other end has gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return pickle.loads(body)
