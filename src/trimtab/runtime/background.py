"""Prepares the next item of an iterator in a thread while the present one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def in_background(source: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, one prepared ahead.

    An exception of ``source`` is raised where its item would have come. When the consumer stops early, the thread ends
    after the item it is preparing.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue
            return

    def prepare() -> None:
        try:
            for item in source:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # raised in the consumer's thread
            put(None, error)

    thread = threading.Thread(target=prepare, name="trimtab-balance", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        stopped.set()
