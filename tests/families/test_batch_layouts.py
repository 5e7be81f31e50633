"""Sizes of visuals by each family's declaration are those the model itself computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration
from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

from trimtab.errors import UnknownModelError
from trimtab.families.batch_layouts import BATCH_LAYOUTS, batch_layout_for
from trimtab.families.llava_onevision import LLAVA_ONEVISION_BATCHES

SIZES = [(56, 56), (28, 84), (300, 28), (57, 31), (200, 200), (13, 400), (112, 56), (500, 333)]


@pytest.fixture(scope="module")
def llava() -> LlavaOnevisionForConditionalGeneration:
    text = {"model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 120}
    vision = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 7}
    points = [[28 * high, 28 * wide] for high in range(1, 7) for wide in range(1, 7)]
    config = LlavaOnevisionConfig(
        text_config=text,
        vision_config=vision,
        image_grid_pinpoints=points,
        image_token_index=100,
        video_token_index=101,
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    return LlavaOnevisionForConditionalGeneration(config).eval()


@pytest.mark.parametrize("size", SIZES)
def test_llava_image_sizes_are_the_models(llava: LlavaOnevisionForConditionalGeneration, size: tuple[int, int]) -> None:
    config = llava.config
    tiles = image_size_to_num_patches(size, config.image_grid_pinpoints, 28)
    pixels = torch.randn(1, tiles, 3, 28, 28)
    with torch.no_grad():
        features = llava.get_image_features(pixels, torch.tensor([size])).pooler_output[0]
    sizes = LLAVA_ONEVISION_BATCHES.streams[0].measure(
        config.to_dict(), {"image_sizes": np.array([size])}, tuple(pixels.shape)
    )
    assert sizes.pixel_rows.tolist() == [tiles]
    assert sizes.tokens.tolist() == [len(features)]


def test_llava_images_of_one_sample_are_not_tiled(llava: LlavaOnevisionForConditionalGeneration) -> None:
    pixels = torch.randn(2, 1, 3, 28, 28)
    together = torch.tensor([2])
    with torch.no_grad():
        features = llava.get_image_features(pixels, torch.tensor([[56, 56], [80, 30]]), batch_num_images=together)
    sizes = LLAVA_ONEVISION_BATCHES.streams[0].measure(
        llava.config.to_dict(),
        {"image_sizes": np.array([[56, 56], [80, 30]]), "batch_num_images": np.array([2])},
        tuple(pixels.shape),
    )
    assert sizes.tokens.tolist() == [len(each) for each in features.pooler_output]


def test_llava_videos_are_pooled(llava: LlavaOnevisionForConditionalGeneration) -> None:
    pixels = torch.randn(2, 5, 3, 28, 28)
    with torch.no_grad():
        features = llava.get_video_features(pixels).pooler_output
    sizes = LLAVA_ONEVISION_BATCHES.streams[1].measure(llava.config.to_dict(), {}, tuple(pixels.shape))
    assert sizes.tokens.tolist() == [features.shape[1]] * 2


def test_an_internvl_tile_without_flag_has_no_placeholders() -> None:
    config = {"vision_config": {"patch_size": [14, 14]}, "image_seq_length": 256}
    stream = BATCH_LAYOUTS["internvl"].streams[0]
    sizes = stream.measure(config, {"image_flags": np.array([1, 0])}, (2, 3, 448, 448))
    assert sizes.tokens.tolist() == [256, 0]
    assert sizes.grid_thw.tolist() == [[1, 32, 32]] * 2


def test_an_unknown_model_type_is_refused_and_known_ones_listed() -> None:
    with pytest.raises(UnknownModelError, match=r"'bert'.*qwen3_vl"):
        batch_layout_for("bert")
