"""Encoded clips of a moving shape: h264 in MP4, with heavy-tailed durations."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from trimtab.demo.shapes import MovingScene, random_moving_scene

SECONDS_RANGE = (0.5, 40.0)
"""Shortest and longest clip, in seconds."""


def random_seconds(rng: np.random.Generator, median: float, sigma: float) -> float:
    """A log-normal duration within ``SECONDS_RANGE``."""
    return float(np.clip(median * np.exp(sigma * rng.standard_normal()), *SECONDS_RANGE))


def write_clip(path: Path, rng: np.random.Generator, side: int, seconds: float, fps: int) -> MovingScene:
    """Draw and encode one square clip of ``side`` pixels (even)."""
    clip = random_moving_scene(rng, side, side, max(round(seconds * fps), 2), fps)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "20", "threads": "1"}
        for index in range(clip.frames):
            container.mux(stream.encode(av.VideoFrame.from_image(clip.at(index).draw())))
        container.mux(stream.encode())
    return clip
