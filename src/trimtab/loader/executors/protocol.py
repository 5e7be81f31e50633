"""What the loader asks of the place where media is decoded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from trimtab.errors import LoaderError
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
        answer: its future; a MediaError where the media cannot be decoded, a LoaderError where the executor was closed
            or the lease released before.
        release: the patches have been used; may be called at any time, and again.
        hurry: somebody waits for the answer: it comes next, beyond the budget where what is held leaves no room.
        abandon: as ``release``, but takes no lock, so that a finalizer may call it; it takes effect soon after.
    """

    request: MediaRequest
    answer: Future[DecodedMedia]
    release: Callable[[], None]
    hurry: Callable[[], None]
    abandon: Callable[[], None]


def hurry_all(leases: Iterable[MediaLease]) -> None:
    """Hurry what is not yet answered: waiting for it in whatever order then ends."""
    for lease in leases:
        if not lease.answer.done():
            lease.hurry()


def release_when_dropped(owner: object, leases: Iterable[MediaLease]) -> None:
    """Release the leases at the latest when nobody refers to their owner any more; they must not refer to it."""
    weakref.finalize(owner, _abandon, tuple(leases)).atexit = False


def _abandon(leases: tuple[MediaLease, ...]) -> None:
    for lease in leases:
        lease.abandon()


def new_answer() -> Future[DecodedMedia]:
    """The future of a request; it cannot be cancelled, only its lease released."""
    answer: Future[DecodedMedia] = Future()
    answer.set_running_or_notify_cancel()
    return answer


def released_early() -> LoaderError:
    """Why a request is not answered."""
    return LoaderError("the request was released before it was answered; ask for it again")


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
