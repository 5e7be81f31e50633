"""What can go wrong on a Ray cluster; each scenario runs in a process of its own.

``python -m tests.loader.ray_scenarios NAME FOLDER`` prints ``done`` where every request was answered as it should be.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from tests.loader.media_cases import PHOTO, ask, plain, whole, write_clip

from trimtab.errors import LoaderError, MediaError
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.executors.protocol import MediaLease, release_when_dropped
from trimtab.loader.executors.ray_cluster import NAMESPACE, start_embedded
from trimtab.loader.executors.ray_executor import RayExecutor, start_dispatcher

BUDGET = 64 << 20
ANSWER_S = 150


def open_executor(workers: int, *, budget_bytes: int = BUDGET, item_timeout_s: float = 60) -> tuple[RayExecutor, Any]:
    dispatcher, _ = start_dispatcher(workers=workers, budget_bytes=budget_bytes, item_timeout_s=item_timeout_s)
    return RayExecutor(dispatcher, sharers=[0], on_close=lambda: ray.kill(dispatcher)), dispatcher


def clips(folder: Path, count: int, **size: int) -> list[DecodeTask]:
    return [whole(write_clip(folder / f"{n}.mp4", **size), "video") for n in range(count)]


def check(leases: Sequence[MediaLease]) -> None:
    for lease in leases:
        np.testing.assert_array_equal(lease.answer.result(timeout=ANSWER_S).patches, plain(lease.request))
        lease.release()


def equal(folder: Path) -> None:
    """Whole and sliced, shared, decoded once; a missing file is named."""
    start_embedded(workers=2, budget_bytes=BUDGET)
    executor, dispatcher = open_executor(2)
    clip, gone = clips(folder, 2)
    (folder / "1.mp4").unlink()
    requests = [ask(clip), ask(clip, (1, 3)), ask(whole(PHOTO)), ask(clip, (3, 4))]
    leases = [executor.request(request) for request in requests]
    check(leases)
    assert executor.transport().moved_bytes == sum(plain(request).nbytes for request in requests)
    assert sorted(ray.get(dispatcher.decodes.remote()).values()) == [1, 1]
    assert sum(lease.answer.result().decoded for lease in leases) == 2
    with pytest.raises(MediaError, match=r"1\.mp4"):
        executor.request(ask(gone)).answer.result(timeout=ANSWER_S)
    executor.close()


STRANGER = """
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()))
"""

RANK = """
import sys
import ray
from trimtab.loader.executors.ray_cluster import connect
assert connect(sys.argv[1], token=sys.argv[2])
print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()))
"""


def guarded(_: Path) -> None:
    """A stranger on the machine or the network cannot run anything; another rank of the run can."""
    cluster = start_embedded(workers=1, budget_bytes=BUDGET)
    assert cluster.token is not None
    assert cluster.token not in repr(cluster)
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    for script, arguments, extra, comes_in in (
        (STRANGER, [], {}, False),
        (STRANGER, [], wrong, False),
        (RANK, [cluster.token], {"RAY_AUTH_MODE": "disabled"}, True),
    ):
        command = [sys.executable, "-c", script, cluster.address, *arguments]
        done = subprocess.run(
            command, env={**base, **extra}, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        assert ("ran 7" in done.stdout) == comes_in, done.stdout + done.stderr
        assert comes_in or "uthenticat" in done.stderr, done.stderr


def own_loop(folder: Path) -> None:
    """Nothing fits the budget; requests are dropped, waited for out of order, released early, made too late."""
    start_embedded(workers=2, budget_bytes=BUDGET)
    executor, _ = open_executor(2, budget_bytes=0)
    tasks = clips(folder, 4)
    first, second, third = (executor.request(ask(task, step=step)) for step, task in enumerate(tasks[:3]))
    third.hurry()
    check([third])
    assert len(first.answer.result(timeout=ANSWER_S).patches)
    second.release()
    with pytest.raises(LoaderError, match="released before it was answered"):
        second.answer.result(timeout=ANSWER_S)
    later = executor.request(ask(tasks[3], step=3))
    owner = {"dropped"}
    release_when_dropped(owner, [first])
    del owner
    check([later])
    open_at_the_end = executor.request(ask(whole(PHOTO)))
    executor.close()
    for late in (open_at_the_end, executor.request(ask(tasks[0]))):
        with contextlib.suppress(LoaderError):
            late.answer.result(timeout=5)
    with pytest.raises(LoaderError, match="was ended"):
        executor.request(ask(tasks[0])).answer.result(timeout=5)
    executor.close()


def killed(folder: Path) -> None:
    """A preprocessor is killed in each of three rounds, mostly while it decodes.

    One killed while idle is noticed only by the next round's first decode.
    """
    start_embedded(workers=2, budget_bytes=BUDGET)
    executor, dispatcher = open_executor(2)
    tasks, dead = clips(folder, 12, frames=64), set[int]()
    for step in range(3):
        leases = [executor.request(ask(task, step=step)) for task in tasks[step::3]]
        while not (living := {pid for _, pid in ray.get(dispatcher.preprocessors.remote())} - dead):
            time.sleep(0.01)
        os.kill(min(living), signal.SIGKILL)
        dead.add(min(living))
        check(leases)
    executor.close()


def stopped(folder: Path) -> None:
    """A decode that hangs is ended and named; the preprocessor comes back."""
    start_embedded(workers=1, budget_bytes=BUDGET)
    executor, dispatcher = open_executor(1, item_timeout_s=4)
    check([executor.request(ask(whole(PHOTO)))])
    os.kill(ray.get(dispatcher.preprocessors.remote())[0][1], signal.SIGSTOP)
    (clip,) = clips(folder, 1)
    with pytest.raises(MediaError, match=r"loader\.item_timeout_s=4 s"):
        executor.request(ask(clip)).answer.result(timeout=ANSWER_S)
    check([executor.request(ask(clip))])
    executor.close()


def node_lost(folder: Path) -> None:
    """A node that decodes and holds media is lost in mid-step, and with it what it held."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=128 << 20) for _ in range(2)]
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    executor, dispatcher = open_executor(2)
    tasks = clips(folder, 10, frames=64, width=224, height=168)
    check([executor.request(ask(task)) for task in tasks[:6]])
    assert len({node for node, _ in ray.get(dispatcher.preprocessors.remote())}) == 2
    leases = [executor.request(ask(task, step=1 + n // 5)) for n, task in enumerate(tasks)]
    cluster.remove_node(nodes[0], allow_graceful=False)
    check(leases)
    executor.close()
    ray.shutdown()
    cluster.shutdown()


def full(folder: Path) -> None:
    """More is asked for than budget and object store hold; later steps wait, nothing is lost."""
    tasks = clips(folder, 24, frames=64, width=336, height=252)
    assert sum(task.nbytes for task in tasks) > 100 << 20
    ray.init(
        address="local",  # without it Ray joins whatever cluster a killed run left noted in /tmp/ray
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, namespace=NAMESPACE, log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    executor, _ = open_executor(2, budget_bytes=40 << 20)
    check([executor.request(ask(task, step=n // 4)) for n, task in enumerate(tasks)])
    executor.close()


SCENARIOS: dict[str, Callable[[Path], None]] = {
    scenario.__name__: scenario for scenario in (equal, guarded, own_loop, killed, stopped, node_lost, full)
}

if __name__ == "__main__":
    if sys.argv[1] in ("node_lost", "full"):  # these start Ray themselves
        os.environ["RAY_AUTH_MODE"] = "disabled"
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
    if ray.is_initialized():
        ray.shutdown()
    print("done")
