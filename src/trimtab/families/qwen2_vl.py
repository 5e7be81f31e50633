"""Qwen2-VL.

Sizes: transformers ``Qwen2VLImageProcessor`` and ``Qwen2VLVideoProcessor``; image limits as the checkpoints ship them.
"""

from trimtab.families.chat_template import CHATML_WITH_VISUALS
from trimtab.families.family import Family
from trimtab.families.placeholders import one_run
from trimtab.schema.geometry import VisionGeometry

QWEN2_VL = Family(
    name="qwen2_vl",
    model_types=("qwen2_vl",),
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    vision_start_token="<|vision_start|>",
    vision_end_token="<|vision_end|>",
    batch_rows={
        "input_ids": "tokens",
        "mm_token_type_ids": "tokens",
        "pixel_values": "patches",
        "pixel_values_videos": "patches",
        "image_grid_thw": "visuals",
        "video_grid_thw": "visuals",
    },
    defaults=VisionGeometry(
        family="qwen2_vl",
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        image_min_pixels=4 * 28 * 28,
        image_max_pixels=16384 * 28 * 28,
        frame_rule="stride",
        pixel_rule="frame",
        video_fps=2.0,
        video_min_frames=4,
        video_max_frames=768,
        video_min_pixels=128 * 28 * 28,
        video_max_pixels=768 * 28 * 28,
        video_token_cap=None,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
    video_token_cap=128_000,
    video_placeholder=one_run,
    chat_template=CHATML_WITH_VISUALS,
)
