"""One JSON request to the rollout server: tried again where that can help, bounded in time, its failures told."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from trimtab.errors import TrainingError
from trimtab.training.grpo.settings import ServerSettings

_PAUSE_S = 0.5
_CHUNK = 1 << 16
_BUSY = (429, 502, 503, 504)


def post(server: ServerSettings, path: str, body: dict[str, Any], what: str) -> Any:
    """Post JSON and return the JSON answered.

    Connections refused, broken or cut off, and servers that say they are overloaded (429, 502, 503, 504), are tried
    again, all within one time limit.

    Args:
        server: its address, key, time limit and retries.
        path: under the address.
        body: the request.
        what: named in errors.

    Raises:
        TrainingError: names the server, what was asked and the reason.
    """
    url = f"{server.url.rstrip('/')}{path}"
    deadline = time.monotonic() + server.timeout_s
    for attempt in range(server.retries + 1):
        last = attempt == server.retries
        try:
            text = _answer(server, url, body, deadline)
            return json.loads(text) if text.strip() else None
        except urllib.error.HTTPError as error:
            if last or error.code not in _BUSY:
                detail = error.read(300).decode(errors="replace").strip()
                raise TrainingError(
                    f"{url}: {what}: the server answered {error.code} {error.reason}: {detail}"
                ) from error
        except ValueError as error:
            raise TrainingError(f"{url}: {what}: the server answered no JSON; check rollout.server.url") from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or "timed out" in str(error) or time.monotonic() >= deadline:
                raise TrainingError(
                    f"{url}: {what}: no answer within rollout.server.timeout_s={server.timeout_s:g} s; "
                    "look at the server's log, or raise the limit"
                ) from error
            if last:
                raise TrainingError(
                    f"{url}: {what}: {_failing(error)} ({type(error).__name__}: {error}) after {attempt + 1} attempts; "
                    "look at the server's log, or correct rollout.server.url"
                ) from error
        time.sleep(min(_PAUSE_S * 2**attempt, max(0.0, deadline - time.monotonic())))
    raise AssertionError("unreachable")


def _answer(server: ServerSettings, url: str, body: dict[str, Any], deadline: float) -> bytes:
    headers = {"Content-Type": "application/json"}
    if server.api_key:
        headers["Authorization"] = f"Bearer {server.api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=max(0.001, deadline - time.monotonic())) as answer:
        chunks = []
        while chunk := answer.read1(_CHUNK):  # whatever has come, so that one that drips is noticed
            chunks.append(chunk)
            if time.monotonic() > deadline:
                raise TimeoutError
        if answer.length:
            raise http.client.IncompleteRead(b"".join(chunks), answer.length)
    return b"".join(chunks)


def _failing(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut off"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "what answered speaks no HTTP"
    return "cannot be reached"
