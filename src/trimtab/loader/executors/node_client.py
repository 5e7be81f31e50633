"""Reaches the decode processes of this machine that another rank started."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from trimtab.errors import LoaderError, TrimtabError
from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.protocol import DecodedMedia, MediaLease, Transport
from trimtab.loader.executors.shared_memory import SharedPatches
from trimtab.loader.executors.socket_messages import receive_message, send_message


class NodeClient:
    """Patches arrive as descriptors of shared memory; only the rows asked for are mapped."""

    def __init__(self, address: str, *, sharers: Iterable[int]) -> None:
        """Connect to a ``NodeServer``.

        Raises:
            LoaderError: it cannot be reached.
        """
        self.sharers = tuple(sharers)
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(address)
        except OSError as error:
            raise LoaderError(
                f"the decode processes of this machine cannot be reached at {address} ({error}); give all its ranks "
                "one folder for temporary files"
            ) from error
        self._sending, self._numbers = threading.Lock(), itertools.count()
        self._open: dict[int, Future[DecodedMedia]] = {}
        self._requests = self._moved_bytes = 0
        self._ended = False
        threading.Thread(target=self._receive, name="decode-client", daemon=True).start()

    def request(self, request: MediaRequest) -> MediaLease:
        """Ask for media; does not block."""
        number = next(self._numbers)
        future: Future[DecodedMedia] = Future()
        self._open[number] = future
        self._send(number, request)
        if self._ended:
            self._fail_open()
        return MediaLease(request, future, lambda: self._send(number, None))

    def transport(self) -> Transport:
        """What was mapped so far."""
        return Transport(self._requests, self._moved_bytes)

    def close(self) -> None:
        """Disconnect; open requests fail."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, number: int, request: MediaRequest | None) -> None:
        with self._sending, contextlib.suppress(OSError):  # the receiving thread tells that the other end has gone
            send_message(self._connection, (number, request))

    def _receive(self) -> None:
        try:
            while True:
                (number, answer), descriptor = receive_message(self._connection)
                self._take(self._open.pop(number), answer, descriptor)
        except (EOFError, OSError):
            self._ended = True
            self._fail_open()

    def _take(self, future: Future[DecodedMedia], answer: Any, descriptor: int | None) -> None:
        if isinstance(answer, TrimtabError):
            future.set_exception(answer)
            return
        assert descriptor is not None
        shape, first, last, decoded = answer
        memory = SharedPatches(descriptor, shape)
        patches = memory.rows(first, last)
        memory.close()
        self._requests += 1
        self._moved_bytes += patches.nbytes
        future.set_result(DecodedMedia(patches, decoded))

    def _fail_open(self) -> None:
        while self._open:
            _, future = self._open.popitem()
            future.set_exception(LoaderError("the rank that holds this machine's decode processes has ended"))
