"""From pixels and frames to patch grids, by the rules of the Transformers processors.

The rules are those of transformers 5.24: ``image_processing_pil_qwen2_vl.py``, ``video_processing_qwen2_vl.py`` and
``video_processing_qwen3_vl.py``; ``tests/media`` holds them to recorded results.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MediaError
from trimtab.schema.geometry import VisionGeometry

MAX_ASPECT_RATIO = 200


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The multiples of ``factor`` nearest to a size, scaled into ``min_pixels:max_pixels`` at about its aspect ratio.

    Returns:
        (height, width) in pixels.

    Raises:
        MediaError: one side is more than 200 times the other.
    """
    return _fit(height, width, 1, 1, factor, min_pixels, max_pixels)


def image_grid(height: int, width: int, geometry: VisionGeometry) -> tuple[int, int, int]:
    """Patch grid (1, h, w) of an image of this size in pixels.

    Raises:
        MediaError: one side is more than 200 times the other.
    """
    resized = smart_resize(height, width, geometry.factor, geometry.image_min_pixels, geometry.image_max_pixels)
    return 1, resized[0] // geometry.patch_size, resized[1] // geometry.patch_size


def video_grid(frames: int, fps: float, height: int, width: int, geometry: VisionGeometry) -> tuple[int, int, int]:
    """Patch grid (t, h, w) of a video of ``frames`` frames at ``fps`` a second, each ``height`` by ``width`` pixels.

    Raises:
        MediaError: the video has no frame, or one side is more than 200 times the other.
    """
    chosen = len(frame_indices(frames, fps, geometry))
    resized = _video_size(chosen, height, width, geometry)
    temporal = -(-chosen // geometry.temporal_patch_size)
    return temporal, resized[0] // geometry.patch_size, resized[1] // geometry.patch_size


def frame_indices(frames: int, fps: float, geometry: VisionGeometry) -> NDArray[np.int64]:
    """Which of a video's frames the model sees.

    A video of fewer frames than a temporal patch gives all of them (the stock processors refuse it); the last frame
    then fills the patch.

    Returns:
        int64 [n], increasing positions in presentation order.

    Raises:
        MediaError: the video has no frame.
    """
    if frames < 1:
        raise MediaError(f"a video of {frames} frames has nothing to show; remove it from the dataset")
    wanted = frames / fps * geometry.video_fps
    if geometry.frame_rule == "linspace":
        count = min(max(int(wanted), geometry.video_min_frames), geometry.video_max_frames, frames)
        return np.linspace(0, frames - 1, count).round().astype(np.int64)
    patch = geometry.temporal_patch_size
    longest = min(geometry.video_max_frames, frames) // patch * patch
    count = int(min(max(wanted, geometry.video_min_frames), longest)) // patch * patch
    if count == 0:
        return np.arange(frames, dtype=np.int64)
    # single precision, as torch.arange has it: 9.999999999 becomes 10
    return (np.arange(count) * (frames / count)).astype(np.float32).astype(np.int64)


def patch_seconds(frames: int, fps: float, geometry: VisionGeometry) -> list[float]:
    """When each temporal patch is shown: the mean of its first and last frame's time, in seconds."""
    times = pad_to_patches(frame_indices(frames, fps, geometry), geometry.temporal_patch_size) / fps
    grouped = times.reshape(-1, geometry.temporal_patch_size)
    return [(first + last) / 2 for first, last in zip(grouped[:, 0].tolist(), grouped[:, -1].tolist(), strict=True)]


def seconds_per_patch(frames: int, fps: float, geometry: VisionGeometry) -> float:
    """Seconds one temporal patch covers: the model input ``second_per_grid_ts``."""
    sampled_fps = len(frame_indices(frames, fps, geometry)) / frames * fps
    return geometry.temporal_patch_size / sampled_fps


def pad_to_patches(indices: NDArray[np.int64], temporal_patch_size: int) -> NDArray[np.int64]:
    """Frame positions with the last repeated until they fill whole temporal patches."""
    return np.pad(indices, (0, -len(indices) % temporal_patch_size), mode="edge")


def _video_size(frames: int, height: int, width: int, geometry: VisionGeometry) -> tuple[int, int]:
    factor, patch = geometry.factor, geometry.temporal_patch_size
    low, high = geometry.video_min_pixels, geometry.video_max_pixels
    if geometry.pixel_rule == "frame":
        if geometry.video_token_cap is not None:
            budget = int(geometry.video_token_cap * factor * factor * 0.9)
            high = max(min(high, budget * patch // frames), int(low * 1.05))
        return smart_resize(height, width, factor, low, high)
    frames = max(frames, patch)
    if geometry.video_token_cap is not None:
        share = min(geometry.video_token_cap * factor * factor, high // frames)
        high = max(share, int(low * 1.05)) * frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return _fit(height, width, frames, round(frames / patch) * patch, factor, low, high)


def _fit(
    height: int, width: int, frames: int, rounded_frames: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise MediaError(
            f"{width}x{height} pixels: one side is more than {MAX_ASPECT_RATIO} times the other; crop it or remove it"
        )
    fitted_height, fitted_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = rounded_frames * fitted_height * fitted_width
    if pixels > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        fitted_height = max(factor, math.floor(height / shrink / factor) * factor)
        fitted_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        fitted_height = math.ceil(height * grow / factor) * factor
        fitted_width = math.ceil(width * grow / factor) * factor
    return fitted_height, fitted_width
