"""The smallest model of each family that still has all its parts, for tests: random weights, no download."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from trimtab.demo.special_tokens import (
    END_OF_TEXT,
    IMAGE,
    TURN_END,
    VIDEO,
    VISION_END,
    VISION_START,
    VOCABULARY_SIZE,
    special_token_id,
)

TinyFamily = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]

_MODELS: dict[TinyFamily, type[PreTrainedModel]] = {
    "qwen2_vl": Qwen2VLForConditionalGeneration,
    "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
    "qwen3_vl": Qwen3VLForConditionalGeneration,
}


def tiny_config(family: TinyFamily) -> PretrainedConfig:
    """A configuration of some 0.3 M parameters, with the demo's vocabulary.

    Hidden size 64 and 4 layers; 4 query and 2 key-value heads; a vision tower of 2 or 3 layers of width 32. Qwen2.5-VL
    keeps its windowed attention (windows of 56 pixels), Qwen3-VL its DeepStack.

    Raises:
        ValueError: the family is unknown.
    """
    if family == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 14}
        return Qwen2VLConfig(text_config=_text(), vision_config=vision, **visual_token_ids())
    if family == "qwen2_5_vl":
        vision = _vision(patch_size=14, window_size=56, fullatt_block_indexes=[2])
        return Qwen2_5_VLConfig(text_config=_text(), vision_config=vision, **visual_token_ids())
    if family == "qwen3_vl":
        vision = _vision(patch_size=16, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])
        return Qwen3VLConfig(text_config=_text(mrope_interleaved=True), vision_config=vision, **visual_token_ids())
    raise ValueError(f"unknown family {family!r}; known: {', '.join(_MODELS)}")


def tiny_model(family: TinyFamily, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of ``tiny_config`` on the CPU, in evaluation mode; equal seeds give equal weights in every dtype.

    The caller's random state is left as it was.

    Raises:
        ValueError: the family is unknown.
    """
    config = tiny_config(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _MODELS[family](config)
    return model.to(dtype).eval()


def visual_token_ids() -> dict[str, int]:
    """The placeholder ids of a configuration, in the demo's vocabulary."""
    return {
        "image_token_id": special_token_id(IMAGE),
        "video_token_id": special_token_id(VIDEO),
        "vision_start_token_id": special_token_id(VISION_START),
        "vision_end_token_id": special_token_id(VISION_END),
    }


def text_token_ids() -> dict[str, int]:
    """The padding, begin and end ids of a text configuration, in the demo's vocabulary."""
    end = special_token_id(END_OF_TEXT)
    return {"pad_token_id": end, "bos_token_id": end, "eos_token_id": special_token_id(TURN_END)}


def _text(**rope: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        # the sections sum to half the head dimension
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], **rope},
        **text_token_ids(),
    }


def _vision(**own: Any) -> dict[str, Any]:
    return {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        **own,
    }
