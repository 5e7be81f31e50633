"""One decode process: reads tasks and memory from a socket, writes patches into the memory, ends with its parent.

Run as ``python -m trimtab.loader.executors.decode_worker`` with the socket as standard input; loads no torch. See
``decode_process`` for the other end.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys

from trimtab.errors import TrimtabError
from trimtab.loader.executors.decode_task import DecodeTask, Patches
from trimtab.loader.executors.shared_memory import SharedPatches
from trimtab.loader.executors.socket_messages import receive_message, send_message
from trimtab.media.patches import read_patches
from trimtab.media.probe import large_images_unwarned

DECODE_NICENESS = 10  # decoding runs steps ahead; where cores are few, the step that computes now comes first
_GRACE_S = 5


def main() -> None:
    """Serve tasks until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(DECODE_NICENESS)
    connection = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    send_message(connection, None)  # imports are over: from here on tasks are timed
    while True:
        try:
            (task, timeout_s), descriptor = receive_message(connection)
        except (EOFError, ConnectionError):
            return
        # the kernel ends a decode that hangs, even where the parent has gone and nobody would
        signal.alarm(math.ceil(timeout_s) + _GRACE_S)
        outcome = decode(task)
        if not isinstance(outcome, str):
            assert descriptor is not None
            memory = SharedPatches(descriptor, task.shape)
            memory.write(outcome)
            memory.close()
        signal.alarm(0)
        try:
            send_message(connection, outcome if isinstance(outcome, str) else None)
        except ConnectionError:  # the parent was killed meanwhile
            return


def decode(task: DecodeTask) -> Patches | str:
    """The patches of a task, or one line saying why there are none."""
    try:
        with large_images_unwarned():
            patches = read_patches(task.visual, task.geometry, task.frame_start, task.frame_stop, data=task.data)
    except TrimtabError as error:
        return str(error)
    except Exception as error:
        return f"{task.visual.source}: {type(error).__name__}: {error}; check the file"
    if patches.shape != task.shape:
        return f"{task.visual.source}: decodes to {patches.shape} patches, scanned as {task.shape}; scan it again"
    return patches


if __name__ == "__main__":
    main()
