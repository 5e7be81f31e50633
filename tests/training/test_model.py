"""A run's model: what its adapters may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from trimtab.demo.tiny_models import tiny_config
from trimtab.errors import SettingsError
from trimtab.training.model import build_model, with_adapters
from trimtab.training.settings import LoraSettings, SFTSettings


def test_a_layer_to_adapt_that_is_not_there_is_named() -> None:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(tiny_config("qwen2_5_vl"))
    with pytest.raises(SettingsError, match=r"lora\.targets: the model has no linear layer foo; it has .*q_proj"):
        with_adapters(model, LoraSettings(rank=2, targets=("q_proj", "foo")))
    assert with_adapters(model, LoraSettings(rank=0)) is model


def test_adapters_depend_on_the_seed_alone(tmp_path: Path) -> None:
    tiny_config("qwen2_5_vl").save_pretrained(tmp_path)
    common: Any = {"model": tmp_path, "data": ("none",), "table": tmp_path / "none", "lora": LoraSettings(rank=2)}
    first, other, again = (build_model(SFTSettings(**common, seed=seed)) for seed in (1, 2, 1))
    drawn = [{name: w for name, w in model.named_parameters() if "lora_A" in name} for model in (first, other, again)]
    assert drawn[0]
    assert all(torch.equal(weight, drawn[2][name]) for name, weight in drawn[0].items())
    assert not any(torch.equal(weight, drawn[1][name]) for name, weight in drawn[0].items())
