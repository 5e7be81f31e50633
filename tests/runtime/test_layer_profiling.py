"""A profile tells what each layer takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime.layer_cases import batch_of, loss_of, model_of
from transformers import InternVLConfig, InternVLForConditionalGeneration

from trimtab.demo.tiny_models import TinyFamily
from trimtab.errors import SettingsError
from trimtab.runtime.layer_profiling import profile_layers
from trimtab.runtime.recompute import recomputing_layers


def test_a_profile_tells_layers_apart() -> None:
    model = model_of("qwen2_5_vl")
    small, large = (batch_of(model.config, text=text) for text in (100, 400))
    first, second = (profile_layers(model, [batch], loss_of, repeats=2) for batch in (small, large))
    language = [kind == "language" for kind in first.kinds]
    assert (second.activation_bytes[language] > 2 * first.activation_bytes[language]).all()
    assert (second.activation_bytes[:3] == first.activation_bytes[:3]).all()  # the image is the same
    assert (first.recomputed_bytes[language] < first.activation_bytes[language] / 5).all()
    assert (first.recompute_ns > 0).tolist() == [True, True, True, False, True, True, True, True, False]
    assert first.boundary_bytes.tolist() == [256 * 32 * 4] * 3 + [64 * 64 * 4] + [166 * 64 * 4] * 4 + [0]
    assert first.parameters.sum() == sum(weight.numel() for weight in model.parameters())
    assert first.state_bytes.sum() == 16 * first.parameters.sum()  # weights, gradients, two moments
    assert all(weight.grad is None for weight in model.parameters())
    assert recomputing_layers(model) == ()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.slow
def test_bytes_are_the_same_every_time(family: TinyFamily) -> None:
    model = model_of(family)
    batch = batch_of(model.config, text=400)
    first, *others = (profile_layers(model, [batch], loss_of, repeats=1) for _ in range(4))
    for other in others:
        for name in ("activation_bytes", "recomputed_bytes", "workspace_bytes"):
            assert getattr(other, name).tolist() == getattr(first, name).tolist()


def test_families_that_take_no_packs_can_recompute() -> None:
    text = {"model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = InternVLConfig(
        text_config={**text, "num_attention_heads": 2, "num_key_value_heads": 2},
        vision_config={**vision, "image_size": [28, 28], "patch_size": [14, 14]},
        image_token_id=60,
        image_seq_length=1,
    )
    model: Any = InternVLForConditionalGeneration(config).train()
    ids = torch.tensor([[1, 60, *range(2, 20)]])
    batch = {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(1, 3, 28, 28)}
    profile = profile_layers(model, [batch], loss_of, repeats=1)
    assert profile.kinds == ("vision", "vision", "projector", "language", "language", "head")
    assert (profile.activation_bytes > profile.recomputed_bytes).tolist() == [True, True, False, True, True, False]


def test_evaluation_mode_and_no_micro_batches_are_refused() -> None:
    model = model_of("qwen2_5_vl")
    with pytest.raises(SettingsError, match="0 micro-batches"):
        profile_layers(model, [], loss_of)
    with pytest.raises(SettingsError, match=r"call model.train\(\) first"):
        profile_layers(model.eval(), [batch_of(model.config)], loss_of)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: None, "returned NoneType"),
        (lambda model, batch: model(**batch, use_cache=False).logits, "a tensor of shape"),
        (lambda model, batch: torch.zeros(()), "needs no gradient"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Any, said: str) -> None:
    model = model_of("qwen2_5_vl")
    with pytest.raises(SettingsError, match=said):
        profile_layers(model, [batch_of(model.config, side=8)], loss)


def test_optimizer_state_of_less_than_nothing_is_refused() -> None:
    model = model_of("qwen2_5_vl")
    with pytest.raises(SettingsError, match="optimizer_bytes=-1"):
        profile_layers(model, [batch_of(model.config)], loss_of, optimizer_bytes=-1)
