"""Values over a local socket to a process of our own: a length, then the pickle, at most one descriptor beside it."""

from __future__ import annotations

import enum
import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<q")


class LeaseNote(enum.Enum):
    """What a ``NodeClient`` tells a ``NodeServer`` about a request it made."""

    RELEASE = "release"
    HURRY = "hurry"


def send_message(connection: socket.socket, value: Any, descriptor: int | None = None) -> None:
    """Send one pickled value; only ever read by the process at the other end."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    head = _LENGTH.pack(len(body))
    if descriptor is None:
        connection.sendall(head)
    else:
        socket.send_fds(connection, [head], [descriptor])
    connection.sendall(body)


def receive_message(connection: socket.socket) -> tuple[Any, int | None]:
    """Receive one value and its descriptor; raises EOFError where the other end has gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    while head and len(head) < _LENGTH.size:
        head += connection.recv(_LENGTH.size - len(head))
    if len(head) < _LENGTH.size:
        raise EOFError
    body = bytearray(_LENGTH.unpack(head)[0])
    filled = 0
    while filled < len(body):
        count = connection.recv_into(memoryview(body)[filled:])
        if not count:
            raise EOFError
        filled += count
    return pickle.loads(body), descriptors[0] if descriptors else None
