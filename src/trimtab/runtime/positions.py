"""Rotary positions of one sample, asked of the model itself, counted from the sample's own start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


def rope_positions(
    model: PreTrainedModel,
    input_ids: Tensor,
    token_types: Tensor,
    grid_thw: Tensor,
    is_video: Tensor,
    seconds_per_grid: Tensor,
) -> Tensor:
    """Three-dimensional rotary positions.

    Args:
        model: a Transformers VLM with ``get_rope_index`` (Qwen families).
        input_ids: int64 [l].
        token_types: int64 [l]; 0 text, 1 image, 2 video.
        grid_thw: int64 [v, 3], the sample's visuals in placeholder order.
        is_video: bool [v].
        seconds_per_grid: float [v], seconds between temporal patches; read for videos.

    Returns:
        int64 [3, l].
    """
    if not len(grid_thw):
        return torch.arange(len(input_ids)).expand(3, -1)
    core: Any = model.model
    images, videos = grid_thw[~is_video], grid_thw[is_video]
    positions, _ = core.get_rope_index(
        input_ids[None],
        mm_token_type_ids=token_types[None],
        image_grid_thw=images if len(images) else None,
        video_grid_thw=videos if len(videos) else None,
        second_per_grid_ts=seconds_per_grid[is_video] if len(videos) else None,
    )
    return positions[:, 0]
