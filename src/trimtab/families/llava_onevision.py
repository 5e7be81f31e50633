"""LLaVA-OneVision: an image is a base tile and a grid of tiles chosen by its size; frames of a video are pooled by 2.

Sizes follow the model's published "any resolution" rule (arXiv:2408.03326): the pinpoint that keeps most pixels, tiles
without their padding, one newline token a row, and a cap on the tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trimtab.errors import MetadataError
from trimtab.families.batch_layout import TOKEN_ROWS, BatchLayout, Columns, Config, VisualSizes, VisualStream


def _merge_size(config: Config) -> int:
    return 1


def tile_patches(config: Config) -> int:
    """Patches along one side of a tile."""
    vision = config["vision_config"]
    return int(vision["image_size"]) // int(vision["patch_size"])


def best_resolution(size: tuple[int, int], pinpoints: list[list[int]]) -> tuple[int, int]:
    """The (height, width) an image of ``size`` is fitted into: most of its pixels kept, then least area unused."""
    height, width = size

    def merit(resolution: list[int]) -> tuple[int, int]:
        high, wide = resolution
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - high * wide

    high, wide = max(pinpoints, key=merit)
    return int(high), int(wide)


def image_tokens(config: Config, size: tuple[int, int], tiles: int) -> int:
    """Placeholders of an image of ``size`` (height, width) in ``tiles`` tiles; 1 tile: the base alone and a newline."""
    side = tile_patches(config)
    if tiles == 1:
        return side * side + 1
    high, wide = (
        length // int(config["vision_config"]["image_size"]) * side
        for length in best_resolution(size, config["image_grid_pinpoints"])
    )
    rows, columns = _without_padding(high, wide, size)
    most = int(str(config.get("vision_aspect_ratio", "anyres_max_9")).removeprefix("anyres_max_"))
    ratio = math.sqrt(rows * columns / (most * side**2))
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return side * side + rows * (columns + 1)


def _without_padding(high: int, wide: int, size: tuple[int, int]) -> tuple[int, int]:
    height, width = size
    if width / height > wide / high:
        padding = (high - int(round(height * (wide / width), 7))) // 2
        return high - 2 * padding, wide
    padding = (wide - int(round(width * (high / height), 7))) // 2
    return high, wide - 2 * padding


def _measure_images(config: Config, columns: Columns, pixel_shape: tuple[int, ...]) -> VisualSizes:
    sizes = np.asarray(columns["image_sizes"], dtype=np.int64).reshape(-1, 2).tolist()
    together = columns.get("batch_num_images")
    alone = [True] * len(sizes)
    if together is not None:
        alone = [count == 1 for count in np.asarray(together).reshape(-1).tolist() for _ in range(count)]
    if len(alone) != len(sizes):
        raise MetadataError(
            f"batch_num_images counts {len(alone)} images, image_sizes has {len(sizes)}; collate both alike"
        )
    unit = int(config["vision_config"]["image_size"])
    tiles = []
    for (height, width), tiled in zip(sizes, alone, strict=True):
        high, wide = best_resolution((height, width), config["image_grid_pinpoints"])
        tiles.append(1 + -(-high // unit) * -(-wide // unit) if tiled else 1)
    side = tile_patches(config)
    return VisualSizes(
        grid_thw=np.array([[count, side, side] for count in tiles], dtype=np.int64).reshape(-1, 3),
        pixel_rows=np.array(tiles, dtype=np.int64),
        tokens=np.array(
            [image_tokens(config, (h, w), count) for (h, w), count in zip(sizes, tiles, strict=True)], dtype=np.int64
        ),
    )


def _measure_videos(config: Config, columns: Columns, pixel_shape: tuple[int, ...]) -> VisualSizes:
    videos, frames = pixel_shape[:2]
    side = tile_patches(config)
    return VisualSizes(
        grid_thw=np.tile(np.array([frames, side, side], dtype=np.int64), (videos, 1)),
        pixel_rows=np.full(videos, frames, dtype=np.int64),
        tokens=np.full(videos, frames * math.ceil(side / 2) ** 2 + 1, dtype=np.int64),
    )


def _smallest_image(config: Config) -> dict[str, list[Any]]:
    unit = int(config["vision_config"]["image_size"])
    return {"image_sizes": [unit, unit]}


def _smallest_video(config: Config) -> dict[str, list[Any]]:
    return {}


LLAVA_ONEVISION_BATCHES = BatchLayout(
    family="llava_onevision",
    rows={**TOKEN_ROWS, "batch_num_images": "samples"},
    samples_from_visuals=("batch_num_images",),
    streams=(
        VisualStream(
            kind="image",
            placeholder_keys=("image_token_id", "image_token_index"),
            pixels="pixel_values",
            pixel_rows="tiles",
            padded=True,
            beside=("image_sizes",),
            measure=_measure_images,
            smallest=_smallest_image,
            token_type=1,
        ),
        VisualStream(
            kind="video",
            placeholder_keys=("video_token_id", "video_token_index"),
            pixels="pixel_values_videos",
            pixel_rows="tiles",
            padded=True,
            measure=_measure_videos,
            smallest=_smallest_video,
            token_type=2,
        ),
    ),
    merge_size=_merge_size,
)
