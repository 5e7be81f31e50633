"""Operations counted from an architecture equal torch's own count on the meta device, at the widths of full models.

torch counts all l^2 pairs of an attention; ours counts the causal half in the language model, so ours is doubled there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from trimtab.cost.architecture import Architecture
from trimtab.cost.flops import (
    language_attention_flops,
    language_linear_flops,
    vision_frame_attention_flops,
    vision_frame_linear_flops,
)
from trimtab.cost.from_config import architecture_from_config

SMALL_TEXT = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 2,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
QWEN3_TEXT = {**SMALL_TEXT, "head_dim": 128}
MOE_TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "mlp_only_layers": [0],
}
GRIDS = torch.tensor([[2, 12, 10], [1, 10, 18]])
TOKENS = 512


def build(config: Any) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")


def language_states(model: Any, *, requires_grad: bool = False) -> torch.Tensor:
    embeddings = torch.zeros(
        1, TOKENS, model.config.text_config.hidden_size, device="meta", requires_grad=requires_grad
    )
    positions = torch.arange(TOKENS, device="meta").view(1, -1)
    if model.config.model_type.startswith("qwen"):
        positions = positions.expand(3, 1, -1)
    every_pair = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool, device="meta")
    mask = every_pair if model.config.model_type == "qwen3_vl" else {"full_attention": None}
    return model.model.language_model(
        inputs_embeds=embeddings, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state


def language_count(model: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        model.lm_head(language_states(model))
    return int(counter.get_total_flops())


def qwen_vision_count(model: Any) -> int:
    """The tower's index tensors are computed beforehand, since they cannot be on the meta device."""
    vision = model.config.vision_config
    given: dict[str, Any] = {
        "position_ids": get_vision_position_ids(GRIDS, vision.spatial_merge_size).to("meta"),
        "cu_seqlens": get_vision_cu_seqlens(GRIDS),
    }
    if model.config.model_type == "qwen2_5_vl":
        index, lengths = get_vision_window_index(
            GRIDS, spatial_merge_size=2, window_size=vision.window_size, patch_size=vision.patch_size
        )
        given |= {"window_index": index.to("meta"), "cu_window_seqlens": lengths}
    if model.config.model_type == "qwen3_vl":
        side = int(vision.num_position_embeddings**0.5)
        indices, weights = get_vision_interpolation_indices_and_weights(GRIDS, side, spatial_merge_size=2)
        given |= {"interp_indices": indices.to("meta"), "interp_weights": weights.to("meta")}
    pixels = torch.zeros(int(GRIDS.prod(1).sum()), 3 * 2 * vision.patch_size**2, device="meta")
    with FlopCounterMode(display=False) as counter:
        model.model.visual(pixels, grid_thw=GRIDS, **given)
    return int(counter.get_total_flops())


def expected_language(architecture: Architecture) -> int:
    language = architecture.language
    return TOKENS * language_linear_flops(language) + 2 * TOKENS**2 * language_attention_flops(language)


def expected_vision(architecture: Architecture, grids: np.ndarray) -> float:
    assert architecture.vision is not None
    full, windowed = vision_frame_attention_flops(architecture.vision, grids[:, 1:])
    linear = vision_frame_linear_flops(architecture.vision, grids[:, 1:])
    return float((grids[:, 0] * (full + windowed + linear)).sum())


QWEN = {
    "qwen2_vl": transformers.Qwen2VLConfig(text_config=SMALL_TEXT, vision_config={"depth": 2, "hidden_size": 3584}),
    "qwen2_5_vl": transformers.Qwen2_5_VLConfig(
        text_config=SMALL_TEXT, vision_config={"depth": 3, "hidden_size": 1280, "fullatt_block_indexes": [1]}
    ),
    "qwen3_vl": transformers.Qwen3VLConfig(
        text_config=QWEN3_TEXT, vision_config={"depth": 3, "deepstack_visual_indexes": [0, 2]}
    ),
}


@pytest.mark.parametrize("family", list(QWEN))
def test_qwen_families(family: str) -> None:
    model = build(QWEN[family])
    architecture = architecture_from_config(model.config.to_dict())
    assert language_count(model) == expected_language(architecture)
    assert qwen_vision_count(model) == pytest.approx(expected_vision(architecture, GRIDS.numpy()), rel=1e-9)


def test_backward_costs_two_forwards_but_for_attention() -> None:
    """torch does not recompute scores, so its backward of attention is two forwards where flash kernels' is 2.5."""
    model = build(QWEN["qwen2_5_vl"])
    with FlopCounterMode(display=False) as counter:
        states = language_states(model, requires_grad=True)
        forward = counter.get_total_flops()
        states.sum().backward()
    assert counter.get_total_flops() == 3 * forward


def test_mixture_of_experts_counts_the_experts_a_token_visits() -> None:
    """Experts are dispatched by the data, so this one is small and runs on the CPU."""
    config = transformers.Qwen3VLMoeConfig(
        text_config=MOE_TEXT, vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    )
    model = transformers.Qwen3VLMoeForConditionalGeneration._from_config(config, attn_implementation="eager")
    model.set_experts_implementation("eager")
    architecture = architecture_from_config(config.to_dict())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(128)[None], use_cache=False)
    language = architecture.language
    assert (language.dense_layers, language.experts) == (1, 8)
    assert counter.get_total_flops() == 128 * language_linear_flops(language) + 2 * 128**2 * language_attention_flops(
        language
    )


def test_internvl_tiles() -> None:
    config = transformers.InternVLConfig(
        text_config={**SMALL_TEXT, "model_type": "qwen2"}, vision_config={"num_hidden_layers": 2}
    )
    model = build(config)
    architecture = architecture_from_config(config.to_dict())
    with FlopCounterMode(display=False) as counter:
        model.model.get_image_features(torch.zeros(3, 3, 448, 448, device="meta"))
    tiles = np.array([[3, 32, 32]])
    assert counter.get_total_flops() == pytest.approx(expected_vision(architecture, tiles), rel=1e-9)
    assert language_count(model) == expected_language(architecture)


def test_llava_onevision_tiles() -> None:
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
        "vision_use_head": False,
    }
    config = transformers.LlavaOnevisionConfig(text_config={**SMALL_TEXT, "model_type": "qwen2"}, vision_config=vision)
    model = build(config)
    architecture = architecture_from_config(config.to_dict())
    with FlopCounterMode(display=False) as counter:
        features = model.model.vision_tower(torch.zeros(5, 3, 384, 384, device="meta")).last_hidden_state
        model.model.multi_modal_projector(features)
    tiles = np.array([[5, 27, 27]])
    assert counter.get_total_flops() == pytest.approx(expected_vision(architecture, tiles), rel=1e-9)
    assert language_count(model) == expected_language(architecture)
