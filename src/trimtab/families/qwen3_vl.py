"""Qwen3-VL: larger patches, one pixel budget for a whole clip, and timestamps in the text before each temporal patch.

Sizes: transformers ``Qwen3VLVideoProcessor``; pixel limits as the checkpoints ship them.
"""

from dataclasses import replace

from trimtab.families.family import Family
from trimtab.families.placeholders import timestamped_runs
from trimtab.families.qwen2_vl import QWEN2_VL
from trimtab.schema.geometry import VisionGeometry

QWEN3_VL: Family = replace(
    QWEN2_VL,
    name="qwen3_vl",
    model_types=("qwen3_vl", "qwen3_vl_moe"),
    defaults=VisionGeometry(
        family="qwen3_vl",
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_min_pixels=64 * 32 * 32,
        image_max_pixels=16384 * 32 * 32,
        frame_rule="linspace",
        pixel_rule="clip",
        video_fps=2.0,
        video_min_frames=4,
        video_max_frames=768,
        video_min_pixels=4 * 32 * 32,
        video_max_pixels=24576 * 32 * 32,
        video_token_cap=None,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    ),
    video_token_cap=768,
    video_placeholder=timestamped_runs,
)
