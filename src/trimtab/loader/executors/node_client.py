"""Reaches the decode processes of this machine that another rank started."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from trimtab.errors import LoaderError, TrimtabError
from trimtab.loader.executors.decode_task import MediaRequest
from trimtab.loader.executors.protocol import DecodedMedia, MediaLease, Transport, new_answer, released_early
from trimtab.loader.executors.shared_memory import SharedPatches
from trimtab.loader.executors.socket_messages import LeaseNote, receive_message, send_message


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
        self._numbers = itertools.count()
        # a queue, as a finalizer may send: it must neither wait for a lock nor for the other end
        self._outgoing: queue.SimpleQueue[tuple[int, MediaRequest | LeaseNote] | None] = queue.SimpleQueue()
        self._open: dict[int, Future[DecodedMedia]] = {}
        self._requests = self._moved_bytes = 0
        self._ended = False
        for work in (self._receive, self._send):
            threading.Thread(target=work, name="decode-client", daemon=True).start()

    def request(self, request: MediaRequest) -> MediaLease:
        """Ask for media; does not block."""
        number = next(self._numbers)
        future = new_answer()
        self._open[number] = future
        self._outgoing.put((number, request))
        if self._ended:
            self._fail_open()
        return MediaLease(
            request,
            future,
            release=lambda: self._release(number),
            hurry=lambda: self._outgoing.put((number, LeaseNote.HURRY)),
            abandon=lambda: self._outgoing.put((number, LeaseNote.RELEASE)),
        )

    def transport(self) -> Transport:
        """What was mapped so far."""
        return Transport(self._requests, self._moved_bytes)

    def close(self) -> None:
        """Disconnect; open requests fail."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._outgoing.put(None)

    def _release(self, number: int) -> None:
        self._outgoing.put((number, LeaseNote.RELEASE))
        unanswered = self._open.pop(number, None)
        if unanswered is not None:
            unanswered.set_exception(released_early())

    def _send(self) -> None:
        while (message := self._outgoing.get()) is not None:
            with contextlib.suppress(OSError):  # the receiving thread tells that the other end has gone
                send_message(self._connection, message)

    def _receive(self) -> None:
        try:
            while True:
                (number, answer), descriptor = receive_message(self._connection)
                self._take(self._open.pop(number, None), answer, descriptor)
        except (EOFError, OSError):
            self._ended = True
            self._fail_open()

    def _take(self, future: Future[DecodedMedia] | None, answer: Any, descriptor: int | None) -> None:
        if isinstance(answer, TrimtabError):
            if future is not None:
                future.set_exception(answer)
            return
        assert descriptor is not None
        shape, first, last, decoded = answer
        memory = SharedPatches(descriptor, shape)
        if future is None:  # released meanwhile
            memory.close()
            return
        try:
            patches = memory.rows(first, last)
        except OSError as error:
            future.set_exception(LoaderError(f"decoded media cannot be mapped ({error}); lower loader.cache_mb"))
            return
        finally:
            memory.close()
        self._requests += 1
        self._moved_bytes += patches.nbytes
        future.set_result(DecodedMedia(patches, decoded))

    def _fail_open(self) -> None:
        for number in list(self._open):
            future = self._open.pop(number, None)
            if future is not None:
                future.set_exception(LoaderError("the rank that holds this machine's decode processes has ended"))
