"""Encoded still pictures of scenes: JPEG and PNG files with heavy-tailed sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab.demo.shapes import Scene, random_scene

SIDE_RANGE = (64, 1024)
"""Shortest and longest picture side, in pixels."""


def random_size(rng: np.random.Generator, median: float, sigma: float) -> tuple[int, int]:
    """Width and height in pixels: a log-normal mean side, an aspect ratio between 3:4 and 4:3, both in ``SIDE_RANGE``."""
    side = median * np.exp(sigma * rng.standard_normal())
    stretch = np.exp(rng.uniform(-1, 1) * np.log(4 / 3) / 2)
    low, high = SIDE_RANGE
    return int(np.clip(side * stretch, low, high)), int(np.clip(side / stretch, low, high))


def write_picture(path: Path, rng: np.random.Generator, width: int, height: int) -> Scene:
    """Draw and encode one picture; the format is that of the file's suffix (``.jpg`` or ``.png``)."""
    scene = random_scene(rng, width, height)
    options = {"quality": 90} if path.suffix == ".jpg" else {"compress_level": 1}
    scene.draw().save(path, **options)
    return scene
