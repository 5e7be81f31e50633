"""Lends a machine's decode processes to its other ranks, over a socket only this user can open."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.loader.executors.node_pool import MemoryAnswer, NodePool
from trimtab.loader.executors.socket_messages import LeaseNote, receive_message, send_message


class NodeServer:
    """The pool's own executor, and the door through which ``NodeClient`` reaches it."""

    def __init__(self, pool: NodePool) -> None:
        """Listen; ``address`` is for ``NodeClient``."""
        self._pool = pool
        self.sharers = pool.sharers
        self.request, self.transport = pool.request, pool.transport
        self._folder = tempfile.mkdtemp(prefix="trimtab-")  # mode 0700
        self.address = str(Path(self._folder) / "decode")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(len(pool.sharers))
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, name="decode-server", daemon=True).start()

    def all_connected(self) -> None:
        """No rank will come any more: the socket's file goes, so that nothing is left whatever becomes of us."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End the pool and all connections."""
        self.all_connected()
        for connection in [self._listener, *self._clients]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._pool.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            threading.Thread(target=self._serve, args=(client,), name="decode-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        sending = threading.Lock()
        leases: dict[int, int] = {}
        try:
            while True:
                (number, message), _ = receive_message(client)
                if message is LeaseNote.RELEASE:
                    self._pool.release(leases.pop(number, -1))
                elif message is LeaseNote.HURRY:
                    self._pool.hurry(leases.get(number, -1))
                else:
                    leases[number] = self._pool.ask(message, _answerer(client, sending, number))
        except (EOFError, OSError):
            pass  # the rank has gone
        finally:
            for lease in leases.values():
                self._pool.release(lease)


def _answerer(client: socket.socket, sending: threading.Lock, number: int):  # type: ignore[no-untyped-def]
    def answer(found: MemoryAnswer | TrimtabError) -> None:
        with sending, contextlib.suppress(OSError):
            if isinstance(found, TrimtabError):
                send_message(client, (number, found))
            else:
                memory = found.memory
                send_message(
                    client, (number, (memory.shape, found.first, found.last, found.decoded)), memory.descriptor
                )

    return answer
