"""Batches of the Qwen families: flat patches and a (t, h, w) grid for each visual."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.families.batch_layout import TOKEN_ROWS, BatchLayout, Columns, Config, VisualSizes, VisualStream
from trimtab.families.family import BatchRows


def merge_size(config: Config) -> int:
    """Patches merged into one token along each spatial axis."""
    return int((config.get("vision_config") or {}).get("spatial_merge_size", 2))


def _measure(grid_key: str) -> Any:
    def measure(config: Config, columns: Columns, pixel_shape: tuple[int, ...]) -> VisualSizes:
        grids = np.asarray(columns[grid_key], dtype=np.int64).reshape(-1, 3)
        patches = np.asarray(grids.prod(axis=1), dtype=np.int64)
        return VisualSizes(grid_thw=grids, pixel_rows=patches, tokens=patches // merge_size(config) ** 2)

    return measure


def _smallest(grid_key: str, with_seconds: bool) -> Any:
    def smallest(config: Config) -> dict[str, list[Any]]:
        merge = merge_size(config)
        return {grid_key: [1, merge, merge]} | ({"second_per_grid_ts": [1.0]} if with_seconds else {})

    return smallest


def _streams(*, with_seconds: bool) -> tuple[VisualStream, ...]:
    return (
        VisualStream(
            kind="image",
            placeholder_keys=("image_token_id",),
            pixels="pixel_values",
            pixel_rows="patches",
            beside=("image_grid_thw",),
            measure=_measure("image_grid_thw"),
            smallest=_smallest("image_grid_thw", with_seconds=False),
            token_type=1,
        ),
        VisualStream(
            kind="video",
            placeholder_keys=("video_token_id",),
            pixels="pixel_values_videos",
            pixel_rows="patches",
            beside=("video_grid_thw", "second_per_grid_ts") if with_seconds else ("video_grid_thw",),
            measure=_measure("video_grid_thw"),
            smallest=_smallest("video_grid_thw", with_seconds=with_seconds),
            token_type=2,
        ),
    )


_ROWS: dict[str, BatchRows] = {**TOKEN_ROWS, "mm_token_type_ids": "tokens"}

QWEN2_VL_BATCHES = BatchLayout(
    family="qwen2_vl", rows=_ROWS, streams=_streams(with_seconds=False), merge_size=merge_size
)
QWEN2_5_VL_BATCHES = BatchLayout(
    family="qwen2_5_vl", rows=_ROWS, streams=_streams(with_seconds=True), merge_size=merge_size
)
QWEN3_VL_BATCHES = BatchLayout(
    family="qwen3_vl", rows=_ROWS, streams=_streams(with_seconds=False), merge_size=merge_size
)
