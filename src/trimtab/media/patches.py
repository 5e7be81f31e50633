"""Pixel values of a visual, one row a patch, in the order and scale of the Transformers processors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trimtab.errors import MediaError
from trimtab.media.decode import MissingFrames, decode_frames, decode_image
from trimtab.media.geometry import frame_indices, image_grid, pad_to_patches, video_grid
from trimtab.media.visual import frame_rate
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import Visual


def read_patches(
    visual: Visual,
    geometry: VisionGeometry,
    frame_start: int = 0,
    frame_stop: int | None = None,
    *,
    data: bytes | None = None,
    missing: MissingFrames = "raise",
    threads: int = 1,
) -> NDArray[np.float32]:
    """Decode, resize, normalise and cut the temporal patches ``frame_start:frame_stop`` of a visual.

    Args:
        visual: as scanned; a video needs its frames and seconds.
        geometry: the geometry it was scanned for.
        frame_start: first temporal patch to read.
        frame_stop: end of the temporal patches to read; None for all.
        data: the encoded bytes, where the caller has them.
        missing: see ``decode_frames``.
        threads: of a video's decoder.

    Returns:
        float32 [n_patches, 3 * temporal_patch_size * patch_size * patch_size]; rows run over temporal patches, then
        merged patches row by row, then the patches inside a merged one.

    Raises:
        MediaError: the file cannot be decoded, or its size is no longer the one scanned.
    """
    stop = visual.grid_t if frame_stop is None else frame_stop
    if not 0 <= frame_start <= stop <= visual.grid_t:
        raise MediaError(f"{visual.source}: temporal patches {frame_start}:{stop} are not within 0:{visual.grid_t}")
    if frame_start == stop:
        return blank_patches(visual, geometry, frame_start, stop)
    if visual.kind == "image":
        return _image_patches(visual, geometry, data)
    return _video_patches(visual, geometry, slice(frame_start, stop), data, missing, threads)


def blank_patches(
    visual: Visual, geometry: VisionGeometry, frame_start: int = 0, frame_stop: int | None = None
) -> NDArray[np.float32]:
    """Zeros in the shape ``read_patches`` gives, for a visual that cannot be read."""
    stop = visual.grid_t if frame_stop is None else frame_stop
    rows = (stop - frame_start) * visual.grid_h * visual.grid_w
    return np.zeros((rows, geometry.patch_values), dtype=np.float32)


def to_patches(pixels: NDArray[np.uint8], levels: NDArray[np.float32], geometry: VisionGeometry) -> NDArray[np.float32]:
    """Cut frames into patch rows and map each channel's levels to model input.

    Args:
        pixels: uint8 [T, H, W, 3], T a multiple of the temporal patch size, H and W of ``geometry.factor``.
        levels: float32 [3, 256], model input of each level of each channel.
        geometry: of the model.

    Returns:
        float32 [T / temporal * H / patch * W / patch, 3 * temporal * patch * patch].
    """
    temporal, merge, patch = geometry.temporal_patch_size, geometry.merge_size, geometry.patch_size
    frames, height, width, _ = pixels.shape
    blocks = pixels.reshape(
        frames // temporal,
        temporal,
        height // geometry.factor,
        merge,
        patch,
        width // geometry.factor,
        merge,
        patch,
        3,
    ).transpose(8, 0, 2, 5, 3, 6, 1, 4, 7)
    rows = frames // temporal * (height // patch) * (width // patch)
    patches = np.empty((rows, 3, temporal * patch * patch), dtype=np.float32)
    for channel in range(3):
        patches[:, channel] = levels[channel][blocks[channel]].reshape(rows, -1)
    return patches.reshape(rows, geometry.patch_values)


def _image_patches(visual: Visual, geometry: VisionGeometry, data: bytes | None) -> NDArray[np.float32]:
    pixels = decode_image(visual.source, data)
    _check_grid(visual, image_grid(pixels.shape[0], pixels.shape[1], geometry))
    height, width = _size(visual, geometry)
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    frames = np.repeat(resized[None], geometry.temporal_patch_size, axis=0)
    return to_patches(frames, _image_levels(geometry), geometry)


def _video_patches(
    visual: Visual, geometry: VisionGeometry, patches: slice, data: bytes | None, missing: MissingFrames, threads: int
) -> NDArray[np.float32]:
    fps = frame_rate(visual)
    frames = visual.frames or 0
    indices = pad_to_patches(frame_indices(frames, fps, geometry), geometry.temporal_patch_size)
    chosen = indices.reshape(-1, geometry.temporal_patch_size)[patches].ravel()
    pixels = decode_frames(visual.source, chosen, data, missing=missing, threads=threads)
    _check_grid(visual, video_grid(frames, fps, pixels.shape[1], pixels.shape[2], geometry))
    return to_patches(_resize_frames(pixels, _size(visual, geometry)), _video_levels(geometry), geometry)


def _image_levels(geometry: VisionGeometry) -> NDArray[np.float32]:
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(values, dtype=np.float32)[:, None] for values in (geometry.mean, geometry.std))
    return (scaled - mean) / std


def _video_levels(geometry: VisionGeometry) -> NDArray[np.float32]:
    # the video processors fold the scaling into mean and deviation, which rounds otherwise in the last bit
    mean, std = (
        np.array(values, dtype=np.float32)[:, None] * np.float32(255) for values in (geometry.mean, geometry.std)
    )
    return (np.arange(256, dtype=np.float32) - mean) / std


def _size(visual: Visual, geometry: VisionGeometry) -> tuple[int, int]:
    return visual.grid_h * geometry.patch_size, visual.grid_w * geometry.patch_size


def _resize_frames(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    if pixels.shape[1:3] == size:
        return pixels
    height, width = size
    resized = np.empty((len(pixels), height, width, 3), dtype=np.uint8)
    for index, frame in enumerate(pixels):
        # widths first, as torchvision does: Pillow would shrink the height first where the width grows
        wide = Image.fromarray(frame).resize((width, frame.shape[0]), Image.Resampling.BICUBIC)
        resized[index] = np.asarray(wide.resize((width, height), Image.Resampling.BICUBIC))
    return resized


def _check_grid(visual: Visual, found: tuple[int, int, int]) -> None:
    planned = (visual.grid_t, visual.grid_h, visual.grid_w)
    if found != planned:
        raise MediaError(
            f"{visual.source}: its patch grid is {found}, scanned as {planned}: the file changed since the scan; "
            "scan the dataset again"
        )
