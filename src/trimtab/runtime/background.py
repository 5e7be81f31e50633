"""Prepares the next item of an iterator in a thread while the present one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def in_background(source: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, one prepared ahead.

    Preparing may be collective, so how far it goes must not hang on timing: item n + 1 is begun when item n is taken,
    never earlier, and a consumer that stops early waits for the one begun. Ranks that stop after the same item have
    then prepared equally many. That last one is thrown away.

    An exception of ``source`` is raised where its item would have come.
    """
    ready: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    ended = threading.Event()

    def prepare() -> None:
        try:
            while wanted.get():
                ready.put((next(source), None))
        except BaseException as error:  # raised in the consumer's thread
            ready.put((None, error))
        finally:
            ended.set()

    thread = threading.Thread(target=prepare, name="trimtab-balance", daemon=True)
    thread.start()
    wanted.put(True)
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            wanted.put(True)
            assert item is not None
            yield item
    finally:
        wanted.put(False)
        ended.wait()  # Thread.join can deadlock where an abandoned loop is collected while another thread starts
