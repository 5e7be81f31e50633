"""A headless Chromium driven over its debugging pipe: no driver, no port, no further package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_S = 120.0


def find_browser() -> str | None:
    """Path of an installed browser, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Browser:
    """One tab; closes with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        """Start it with a profile in ``folder``."""
        browser = find_browser()
        assert browser is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser takes commands on descriptor 3 and answers on 4, whatever theirs are here.
        wiring = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", wiring, browser, *switches, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        """The browser itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)

    def open(self, page: str, *, width: int, dark: bool = False) -> None:
        """Load a page and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, such as Tab or ArrowRight."""
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def problems(self) -> list[str]:
        """What the page's script threw, and what the browser logged as errors."""
        thrown = [event["params"] for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        logged = [event["params"]["entry"] for event in self.events if event["method"] == "Log.entryAdded"]
        return [str(one["exceptionDetails"]) for one in thrown] + [
            str(one["text"]) for one in logged if one["level"] == "error"
        ]

    def requests(self) -> list[str]:
        """Addresses the page asked for."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [str(one["request"]["url"]) for one in sent]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        """The next message; events are kept."""
        stop = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            assert time.monotonic() < stop, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message
