"""Layers recompute by name."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.layer_cases import batch_of, gradients, model_of

from trimtab.demo.tiny_models import TinyFamily
from trimtab.errors import SettingsError, UnknownModelError
from trimtab.runtime.model_layers import find_layers
from trimtab.runtime.recompute import recompute_layers, recomputing_layers


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_chosen_layers_recompute_and_gradients_stay(family: TinyFamily) -> None:
    model = model_of(family)
    batch = batch_of(model.config, side=4, text=8)
    expected = gradients(model, batch)
    calls: list[str] = []
    for layer in find_layers(model).layers:
        attention = "attn" if layer.kind == "vision" else "self_attn"
        if layer.can_recompute:
            inner = model.get_submodule(f"{layer.name}.{attention}")
            inner.register_forward_hook(lambda *_, name=layer.name: calls.append(name))
    chosen = ("model.visual.blocks.1", "model.language_model.layers.0", "model.language_model.layers.3")
    recompute_layers(model, chosen)
    found = gradients(model, batch)
    assert recomputing_layers(model) == chosen
    assert sorted(name for name in set(calls) if calls.count(name) == 2) == sorted(chosen)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    recompute_layers(model, ())
    assert recomputing_layers(model) == ()


def test_a_name_that_is_no_layers_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'layers\.0' is no layer of the model"):
        recompute_layers(model_of("qwen2_5_vl"), ["layers.0"])


def test_a_layer_that_cannot_recompute_is_named() -> None:
    model = model_of("qwen2_5_vl")
    model.model.visual.blocks[1] = torch.nn.Identity()
    with pytest.raises(UnknownModelError, match=r"layer model.visual.blocks.1 \(Identity\) does not recompute"):
        recompute_layers(model, ["model.visual.blocks.1"])
