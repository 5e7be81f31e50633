"""What a plain reader of pixels sees: answers found again from decoded files, without the scenes that drew them."""

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from trimtab.demo.shapes import COLOURS, NUMBERS


def picture(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path).convert("RGB"))


def frames(path: Path) -> list[NDArray[np.uint8]]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def shape_mask(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels of the shapes: the ground is grey."""
    return np.ptp(pixels.astype(int), axis=-1) > 60


def colour(pixels: NDArray[np.uint8]) -> str:
    seen = np.median(pixels[shape_mask(pixels)], axis=0)
    return min(COLOURS, key=lambda name: float(np.abs(seen - COLOURS[name]).sum()))


def count(pixels: NDArray[np.uint8]) -> str:
    mask = shape_mask(pixels)
    sizes = np.bincount(ndimage.label(mask)[0].ravel())[1:]
    # specks left by JPEG are not shapes
    return NUMBERS[int((sizes > 0.01 * mask.size).sum())]


def direction(clip: list[NDArray[np.uint8]]) -> str:
    (y0, x0), (y1, x1) = (np.argwhere(shape_mask(frame)).mean(axis=0) for frame in (clip[0], clip[-1]))
    dx, dy = x1 - x0, y1 - y0
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"
