"""The life of one rank process: wait for a task, run it in a fresh world, answer, leave the world."""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import signal
import socket
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimtab.testing.messages import Answer, LeaveWorld, Task

ORPHAN_LIMIT_S = 30.0
"""A rank whose pool has vanished ends itself this long after its run's time limit."""


def serve(connection: Connection, stack_file: Path) -> None:
    """Answer tasks until the pool closes the connection. SIGUSR1 writes every thread's stack to ``stack_file``."""
    os.setpgid(0, 0)  # the pool kills a rank with the processes it started; Ctrl-C reaches the pool alone
    os.environ["GLOO_SOCKET_IFNAME"] = loopback_interface()
    with stack_file.open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        while True:
            try:
                message: Task | LeaveWorld = connection.recv()
            except EOFError:
                return
            _leave_world()
            if isinstance(message, Task):
                faulthandler.dump_traceback_later(message.timeout_s + ORPHAN_LIMIT_S, file=stacks, exit=True)
                answer = _answer(message)
                faulthandler.cancel_dump_traceback_later()
                connection.send(answer)


def loopback_interface() -> str:
    """Name of the machine's loopback interface ("lo" on Linux, "lo0" on macOS)."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])


def _answer(task: Task) -> Answer:
    try:
        value = _run(task)
        ended_s = time.monotonic()
        return Answer(value=pickle.dumps(value), at_s=ended_s)
    except BaseException as error:  # the pool raises it in the caller
        ended_s = time.monotonic()
        text = "".join(traceback.format_exception(error))
        traceback.clear_frames(error.__traceback__)  # frames hold the process group, and so its sockets, open
        return Answer(error=_pickled_error(error), traceback=text, at_s=ended_s)


def _run(task: Task) -> Any:
    sys.path[:] = task.sys_path
    fn, args = pickle.loads(task.call)
    _reset(task.seed)
    _enter_world(task)
    assert dist.group.WORLD is not None
    time.sleep(task.delay_s)
    return fn(dist.group.WORLD, *args)


def _reset(seed: int) -> None:
    """Undo what an earlier task may have left in this process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (code under test may draw from the global generator)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


def _enter_world(task: Task) -> None:
    store = dist.TCPStore("127.0.0.1", task.store_port, is_master=False, timeout=timedelta(seconds=task.timeout_s))
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(task.world, store),
        rank=task.rank,
        world_size=task.world_size,
        timeout=timedelta(seconds=2 * task.timeout_s),  # the pool's limit comes first and names the ranks
    )


def _leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _pickled_error(error: BaseException) -> bytes:
    """The exception itself where it survives pickling; interrupts and exits must not end the caller's process."""
    if isinstance(error, Exception):
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pass
        else:
            return pickled
    return pickle.dumps(RuntimeError(f"{type(error).__qualname__}: {error}"))
