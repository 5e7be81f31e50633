"""Scans rows of a dataset at once: in threads, in processes, or on a Ray cluster; results come in order."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Literal, TypeVar

from trimtab.errors import SettingsError
from trimtab.media.probe import large_images_unwarned

Place = Literal["threads", "processes", "ray"]
Result = TypeVar("Result")

_CHUNK_ROWS = 64
_CHUNKS_IN_FLIGHT = 2
"""Chunks a worker has waiting, which bounds the results held in memory."""


def map_rows(
    scan: Callable[[int], Result], rows: int, *, workers: int, place: Place, ray_address: str | None = None
) -> Generator[Result, None, None]:
    """``scan`` of each row, in order; who stops early must close it, which ends the workers.

    Args:
        scan: of one row; picklable unless ``place`` is "threads".
        rows: how many.
        workers: threads, processes or Ray tasks at once.
        place: threads share the interpreter lock, which decoding headers and tokenising release in part.
        ray_address: of the cluster for "ray"; Ray is started within this process where None.

    Raises:
        SettingsError: Ray is asked for and not installed.
    """
    chunks = [range(start, min(start + _CHUNK_ROWS, rows)) for start in range(0, rows, _CHUNK_ROWS)]
    if place == "ray":
        yield from _on_ray(scan, chunks, workers, ray_address)
        return
    pool: Executor
    scan_chunk = _scan_chunk
    if place == "threads":
        pool = ThreadPoolExecutor(workers)
    else:
        scan_chunk = _scan_chunk_alone
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    waiting: deque[Future[list[Result]]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(scan_chunk, scan, chunk))
            if len(waiting) == workers * _CHUNKS_IN_FLIGHT:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _scan_chunk(scan: Callable[[int], Result], chunk: Sequence[int]) -> list[Result]:
    return [scan(row) for row in chunk]


def _scan_chunk_alone(scan: Callable[[int], Result], chunk: Sequence[int]) -> list[Result]:
    """The same in a process with no other thread at work."""
    with large_images_unwarned():
        return _scan_chunk(scan, chunk)


def _on_ray(
    scan: Callable[[int], Result], chunks: Sequence[range], workers: int, address: str | None
) -> Generator[Result, None, None]:
    try:
        import ray

        from trimtab.loader.executors.ray_cluster import connect, start_embedded
    except ImportError as error:
        raise SettingsError(f"scanning on Ray needs it installed ({error}); pip install 'trimtab[ray]'") from error
    started = not ray.is_initialized()
    if address is None:
        start_embedded(workers=workers, budget_bytes=0)
    else:
        connect(address)
    try:
        shared, task = ray.put(scan), ray.remote(_scan_chunk_alone)
        waiting = []
        for chunk in chunks:
            waiting.append(task.remote(shared, chunk))
            if len(waiting) == workers * _CHUNKS_IN_FLIGHT:
                yield from ray.get(waiting.pop(0))
        for reference in waiting:
            yield from ray.get(reference)
    finally:
        if started:
            ray.shutdown()
