"""Requests that are dropped, answered out of order, released early or come too late: none waits for ever."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.loader.media_cases import PHOTO, ask, plain, scanned, whole, write_clip

from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.executors.node_client import NodeClient
from trimtab.loader.executors.node_pool import NodePool
from trimtab.loader.executors.node_server import NodeServer
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.media_reader import MediaReader
from trimtab.loader.pixel_reader import PixelReader
from trimtab.loader.placeholder import Placeholder
from trimtab.loader.proxy_batch import PIXELS
from trimtab.loader.proxy_loader import ProxyDataLoader

ANSWER_S = 60


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> MediaReader:
    return scanned(tmp_path_factory.mktemp("pending"))


@pytest.fixture(scope="module")
def server() -> Iterator[NodeServer]:
    """Two decode processes whose budget nothing fits in, so that only the earliest step is decoded unasked."""
    server = NodeServer(NodePool(2, budget_bytes=0, item_timeout_s=30))
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(server: NodeServer) -> Iterator[NodeClient]:
    client = NodeClient(server.address, sharers=[0, 1])
    yield client
    client.close()


@pytest.fixture(params=["own process", "another rank"])
def executor(request: pytest.FixtureRequest, server: NodeServer, client: NodeClient) -> MediaExecutor:
    return server if request.param == "own process" else client


def specs(media: MediaReader) -> list[Placeholder]:
    """Pixels of one sample each, of different clips."""
    batch = next(iter(ProxyDataLoader(media.table, batch_size=5)))
    order = [batch.rows.tolist().index(row) for row in (0, 2, 3)]
    return [batch.take([place]).tensors[PIXELS] for place in order]


def ended(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The result of work that must end."""
    done: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    assert done, "it failed or waits for ever"
    return done[0]


def test_a_request_that_is_dropped_holds_nothing_up(media: MediaReader, executor: MediaExecutor) -> None:
    reader, (first, second, _) = PixelReader(media, executor), specs(media)
    dropped = reader.request(first, step=0)
    leases = dropped.leases
    del dropped
    waiting = reader.request(second, step=1)
    for lease in waiting.leases:  # without anybody waiting, which alone would hurry it
        lease.answer.result(timeout=ANSWER_S)
    assert len(reader.get(waiting)) == len(second)
    for lease in leases:
        assert isinstance(lease.answer.exception(timeout=ANSWER_S), LoaderError) or lease.answer.result()


def test_a_request_dropped_within_a_cycle_is_released_by_the_collector(
    media: MediaReader, executor: MediaExecutor
) -> None:
    reader, (first, second, _) = PixelReader(media, executor), specs(media)
    cycle: list[object] = [reader.request(first, step=0)]
    cycle.append(cycle)
    del cycle
    waiting = reader.request(second, step=1)
    gc.collect()
    for lease in waiting.leases:
        lease.answer.result(timeout=ANSWER_S)
    waiting.release()


def test_requests_are_answered_in_whatever_order_they_are_waited_for(
    media: MediaReader, executor: MediaExecutor
) -> None:
    reader, asked = PixelReader(media, executor), specs(media)
    pending = [reader.request(spec, step=step) for step, spec in enumerate(asked)]
    got = {step: ended(lambda step=step: reader.get(pending[step])) for step in (2, 1, 0)}  # type: ignore[misc]
    for step, spec in enumerate(asked):
        fresh = reader.get(reader.request(spec, step=9))
        torch.testing.assert_close(got[step], fresh, rtol=0, atol=0)
        assert got[step].shape == spec.shape


def test_what_is_released_before_its_answer_fails_instead_of_waiting(
    media: MediaReader, executor: MediaExecutor
) -> None:
    reader, (first, second, third) = PixelReader(media, executor), specs(media)
    with reader.request(first, step=0) as held, reader.request(second, step=1) as pending:
        assert len(held.leases[0].answer.result(timeout=ANSWER_S).patches)
        pending.release()
        with pytest.raises(LoaderError, match="released before it was answered"):
            reader.get(pending)
        later = reader.request(third, step=2)
    for lease in later.leases:  # leaving the block released step 0
        lease.answer.result(timeout=ANSWER_S)
    later.release()


def test_a_request_cannot_be_cancelled_under_the_executor(executor: MediaExecutor) -> None:
    lease = executor.request(ask(whole(PHOTO)))
    assert not lease.answer.cancel()
    assert (lease.answer.result(timeout=ANSWER_S).patches == plain(lease.request)).all()
    lease.release()


def test_a_hurried_request_is_decoded_beyond_the_budget(server: NodeServer, tmp_path: Path) -> None:
    clips = [whole(write_clip(tmp_path / f"{n}.mp4"), "video") for n in range(2)]
    first, second = (server.request(ask(clip, step=step)) for step, clip in enumerate(clips))
    first.answer.result(timeout=ANSWER_S)
    time.sleep(0.3)
    assert not second.answer.done(), "the budget holds it back"
    second.hurry()
    assert len(second.answer.result(timeout=ANSWER_S).patches)
    first.release()
    second.release()


@pytest.mark.parametrize("workers", [0, -1, 2.5, True])
def test_a_pool_without_a_process_is_refused(workers: int) -> None:
    with pytest.raises(SettingsError, match=rf"workers={workers}"):
        NodePool(workers, budget_bytes=1 << 20, item_timeout_s=30)


def test_a_pool_needs_a_budget_and_a_time() -> None:
    with pytest.raises(SettingsError, match="budget_bytes=-1"):
        NodePool(1, budget_bytes=-1, item_timeout_s=30)
    with pytest.raises(SettingsError, match="item_timeout_s=0"):
        NodePool(1, budget_bytes=0, item_timeout_s=0)
