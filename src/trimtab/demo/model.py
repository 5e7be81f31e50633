"""Builds the demo's model folder: a small Qwen2.5-VL with random weights, its tokenizer and processor files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from trimtab.demo.settings import ModelSettings
from trimtab.demo.special_tokens import VOCABULARY_SIZE
from trimtab.demo.tiny_models import text_token_ids, visual_token_ids
from trimtab.demo.tokenizer import save_tokenizer, train_tokenizer

_PATCH = {"patch_size": 14, "temporal_patch_size": 2}
_MERGE_SIZE = 2


def write_model(folder: Path, texts: Iterable[str], seed: int, settings: ModelSettings | None = None) -> Path:
    """Write everything ``from_pretrained`` looks for; equal arguments give equal weights.

    Args:
        folder: made if missing.
        texts: what the tokenizer is trained on.
        seed: of the weights.
        settings: sizes and limits.

    Returns:
        The folder.
    """
    settings = settings or ModelSettings()
    folder.mkdir(parents=True, exist_ok=True)
    build_model(seed, settings).save_pretrained(folder)
    save_tokenizer(train_tokenizer(texts), folder)
    for name, content in processor_files(settings).items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder


def build_model(seed: int, settings: ModelSettings) -> Qwen2_5_VLForConditionalGeneration:
    """The model with random weights on the CPU; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2_5_VLForConditionalGeneration(model_config(settings))


def model_config(settings: ModelSettings) -> Qwen2_5_VLConfig:
    """The model's configuration."""
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCABULARY_SIZE,
            "hidden_size": settings.hidden_size,
            "intermediate_size": settings.intermediate_size,
            "num_hidden_layers": settings.layers,
            "num_attention_heads": settings.heads,
            "num_key_value_heads": settings.key_value_heads,
            "max_position_embeddings": 32768,
            "initializer_range": settings.initializer_range,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": list(settings.mrope_section),
            },
            **text_token_ids(),
        },
        vision_config={
            "depth": settings.vision_layers,
            "hidden_size": settings.vision_hidden_size,
            "intermediate_size": settings.vision_intermediate_size,
            "out_hidden_size": settings.hidden_size,
            "num_heads": settings.vision_heads,
            "spatial_merge_size": _MERGE_SIZE,
            "window_size": settings.window_size,
            "fullatt_block_indexes": [settings.vision_layers - 1],
            "tokens_per_second": 2,
            "initializer_range": settings.initializer_range,
            **_PATCH,
        },
        initializer_range=settings.initializer_range,
        **visual_token_ids(),
    )


def processor_files(settings: ModelSettings) -> dict[str, dict[str, Any]]:
    """The processors' settings, by file name."""
    common = {
        **_PATCH,
        "merge_size": _MERGE_SIZE,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": settings.image_min_pixels,
        "max_pixels": settings.image_max_pixels,
        "size": {"shortest_edge": settings.image_min_pixels, "longest_edge": settings.image_max_pixels},
        **common,
    }
    video = {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "fps": settings.video_fps,
        "min_pixels": settings.video_min_pixels,
        "max_pixels": settings.video_max_pixels,
        "size": {"shortest_edge": settings.video_min_pixels, "longest_edge": settings.video_max_pixels},
        "do_sample_frames": True,
        **common,
    }
    return {"preprocessor_config.json": image, "video_preprocessor_config.json": video}
