"""Tiny models of every family with random weights: no download, a few hundred thousand parameters."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
)

_TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENS: dict[str, Any] = {
    "image_token_id": 500,
    "video_token_id": 501,
    "vision_start_token_id": 502,
    "vision_end_token_id": 503,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def tiny_config(family: str) -> PreTrainedConfig:
    """Configuration of a tiny model of ``family``: "qwen2_vl", "qwen2_5_vl" (windowed) or "qwen3_vl" (deepstack).

    Raises:
        KeyError: another family.
    """
    return {"qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl}[family]()


def tiny_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A tiny model whose weights depend on ``seed`` alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(tiny_config(family), dtype=dtype)
    return model


def _qwen2_vl() -> PreTrainedConfig:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    return Qwen2VLConfig(text_config={**_TEXT, "rope_parameters": _ROPE}, vision_config=vision, **_TOKENS)


def _qwen2_5_vl() -> PreTrainedConfig:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [2],
    }
    return Qwen2_5_VLConfig(text_config={**_TEXT, "rope_parameters": _ROPE}, vision_config=vision, **_TOKENS)


def _qwen3_vl() -> PreTrainedConfig:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    text = {**_TEXT, "head_dim": 16, "rope_parameters": {**_ROPE, "mrope_interleaved": True}}
    return Qwen3VLConfig(text_config=text, vision_config=vision, **_TOKENS)
