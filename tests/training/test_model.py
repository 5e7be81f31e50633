"""A run's model: what its adapters may change."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText

from trimtab.demo.tiny_models import tiny_config
from trimtab.errors import SettingsError
from trimtab.training.model import with_adapters
from trimtab.training.settings import LoraSettings


def test_a_layer_to_adapt_that_is_not_there_is_named() -> None:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(tiny_config("qwen2_5_vl"))
    with pytest.raises(SettingsError, match=r"lora\.targets: the model has no linear layer foo; it has .*q_proj"):
        with_adapters(model, LoraSettings(rank=2, targets=("q_proj", "foo")))
    assert with_adapters(model, LoraSettings(rank=0)) is model
