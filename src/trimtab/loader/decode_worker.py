"""One decode process: reads tasks from standard input, writes patches to standard output, ends with its parent.

Run as ``python -m trimtab.loader.decode_worker``; loads no torch. See ``decode_workers`` for the other end.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.loader.pipe_messages import read_message, write_message
from trimtab.media.patches import read_patches
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import Visual

_NICE = 10  # decoding runs steps ahead; where cores are few, the step that computes now comes first


@dataclass(frozen=True, kw_only=True)
class DecodeTask:
    """Temporal patches ``frame_start:frame_stop`` of a visual.

    Attributes:
        visual: the image or video and its planned grid.
        geometry: how the model's processor sizes and cuts it.
        frame_start, frame_stop: run of temporal patches.
        data: the encoded file where the dataset carries it, else None.
    """

    visual: Visual
    geometry: VisionGeometry
    frame_start: int
    frame_stop: int
    data: bytes | None = None


def main() -> None:
    """Serve tasks until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    tasks, results = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            task: DecodeTask = read_message(tasks)
        except EOFError:
            return
        outcome = decode(task)
        if isinstance(outcome, str):
            write_message(results, outcome)
        else:
            write_message(results, (outcome.shape, outcome.dtype.str))
            results.write(np.ascontiguousarray(outcome).data.cast("B"))
            results.flush()


def decode(task: DecodeTask) -> NDArray[np.float32] | str:
    """The patches of a task, or one line saying why there are none."""
    try:
        return read_patches(task.visual, task.geometry, task.frame_start, task.frame_stop, data=task.data)
    except TrimtabError as error:
        return str(error)
    except Exception as error:
        return f"{task.visual.source}: {type(error).__name__}: {error}; check the file"


if __name__ == "__main__":
    main()
