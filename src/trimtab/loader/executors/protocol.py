"""What the loader asks of the place where media is decoded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from trimtab.loader.executors.decode_task import MediaRequest, Patches


@dataclass(frozen=True, eq=False)
class DecodedMedia:
    """An answer.

    Attributes:
        patches: the needed part, read-only.
        decoded: this request made it be decoded; others found it decoded or under way.
    """

    patches: Patches
    decoded: bool


@dataclass(frozen=True, eq=False)
class MediaLease:
    """A request under way or answered; what it holds is not evicted until it is released.

    Attributes:
        request: what was asked for.
        answer: its future; a MediaError where the media cannot be decoded.
        release: the patches have been used; may be called at any time, and again.
    """

    request: MediaRequest
    answer: Future[DecodedMedia]
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Transport:
    """What an executor carried to this rank since it was opened.

    Attributes:
        requests: answered.
        moved_bytes: tensor bytes carried to this process, or mapped into it: counted where they arrive.
    """

    requests: int = 0
    moved_bytes: int = 0


class MediaExecutor(Protocol):
    """Decodes media for the ranks that share it: ``local`` or ``ray``.

    Attributes:
        sharers: the ranks it serves, this one among them; a visual several of them need is decoded once.
    """

    sharers: tuple[int, ...]

    def request(self, request: MediaRequest) -> MediaLease:
        """Ask for media; does not block."""

    def transport(self) -> Transport:
        """What was carried to this rank so far."""

    def close(self) -> None:
        """End what this rank started; open requests are cancelled or fail."""
