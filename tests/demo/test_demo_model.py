import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from trimtab.demo.model import write_model
from trimtab.demo.questions import texts
from trimtab.demo.settings import ModelSettings
from trimtab.families import read_checkpoint


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), texts(), seed=0)


def test_from_pretrained_finds_the_model_and_its_tokenizer(model_folder: Path) -> None:
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert model.config.text_config.vocab_size == len(tokenizer)
    assert model.config.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert model.config.video_token_id == tokenizer.convert_tokens_to_ids("<|video_pad|>")


def test_windows_and_multimodal_rotary_positions_are_kept(model_folder: Path) -> None:
    config = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_folder).config
    settings = ModelSettings()
    assert config.vision_config.window_size == settings.window_size
    assert config.vision_config.fullatt_block_indexes == [settings.vision_layers - 1]
    assert config.text_config.rope_parameters["mrope_section"] == list(settings.mrope_section)
    assert sum(settings.mrope_section) * 2 == settings.hidden_size // settings.heads


def test_the_processors_limits_are_read_back(model_folder: Path) -> None:
    settings, geometry = ModelSettings(), read_checkpoint(model_folder).geometry
    assert (geometry.image_min_pixels, geometry.image_max_pixels) == (
        settings.image_min_pixels,
        settings.image_max_pixels,
    )
    assert (geometry.video_min_pixels, geometry.video_max_pixels) == (
        settings.video_min_pixels,
        settings.video_max_pixels,
    )
    assert (geometry.patch_size, geometry.merge_size, geometry.temporal_patch_size) == (14, 2, 2)
    assert geometry.video_fps == settings.video_fps


def test_a_seed_gives_the_same_weights(model_folder: Path, tmp_path: Path) -> None:
    again = Qwen2_5_VLForConditionalGeneration.from_pretrained(write_model(tmp_path, texts(), seed=0))
    for one, other in zip(
        again.parameters(), Qwen2_5_VLForConditionalGeneration.from_pretrained(model_folder).parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_processor_files_are_those_transformers_looks_for(model_folder: Path) -> None:
    image = json.loads((model_folder / "preprocessor_config.json").read_text())
    video = json.loads((model_folder / "video_preprocessor_config.json").read_text())
    assert image["image_processor_type"] == "Qwen2VLImageProcessor"
    assert video["video_processor_type"] == "Qwen2VLVideoProcessor"
