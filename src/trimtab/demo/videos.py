"""Encoded clips of a moving shape: h264 in MP4."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av

from trimtab.demo.shapes import MovingScene


def write_clip(path: Path, clip: MovingScene) -> None:
    """Draw and encode one clip; its width and height must be even."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(clip.fps))
        stream.width, stream.height, stream.pix_fmt = clip.still.width, clip.still.height, "yuv420p"
        # one thread: the bytes are then the same on every machine
        stream.options = {"preset": "ultrafast", "crf": "20", "threads": "1"}
        for index in range(clip.frames):
            container.mux(stream.encode(av.VideoFrame.from_image(clip.at(index).draw())))
        container.mux(stream.encode())
