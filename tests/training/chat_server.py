"""A small server of the OpenAI chat protocol for tests: answers words drawn from the request's seed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("red", "square", "left", "three shapes")


class ChatServer(ThreadingHTTPServer):
    """Keeps the requests it got; ``delay_s``, ``status`` and ``faults``, one a request, make it slow or fail."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.delay_s, self.status, self.text = 0.0, 200, None
        self.faults: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        time.sleep(self.server.delay_s)
        if self.server.faults:
            self._fail(self.server.faults.pop(0))
        elif self.server.status != 200:
            self._answer(self.server.status, b"out of order")
        elif self.server.text is not None:
            self._answer(200, self.server.text)
        elif self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": WORDS[body["seed"] % len(WORDS)]}
            self._answer(200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
        else:
            self._answer(200, b'{"success": true}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, fault: str) -> None:
        if fault == "busy":
            self._answer(503, b"out of order")
        elif fault == "cut off":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"{")
        elif fault == "no http":
            self.wfile.write(b"SSH-2.0-server\r\n")
        elif fault == "drips":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass
