"""Builds the model a run trains: from a checkpoint or a configuration, adapters and frozen parts included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from trimtab.errors import SettingsError, UnknownModelError
from trimtab.training.settings import LoraSettings, SFTSettings

_WEIGHTS = ("*.safetensors", "*.bin")


def build_model(settings: SFTSettings) -> nn.Module:
    """The model of a run on the CPU, weights in float32 (float64 for checks).

    Adapters, and the weights where the folder has no weight files, are random and depend on the seed alone.

    Raises:
        UnknownModelError: the folder is no vision-language model.
    """
    dtype = torch.float64 if settings.dtype == "float64" else torch.float32
    model: Any = load_model(settings.model, dtype, settings.seed)
    core: Any = model.model
    if settings.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with torch.random.fork_rng():  # adapters are drawn
        torch.manual_seed(settings.seed)
        adapted = with_adapters(model, settings.lora)
    if settings.freeze_vision:
        core.visual.requires_grad_(False)
    return adapted


def with_adapters(model: nn.Module, lora: LoraSettings) -> nn.Module:
    """The model with low-rank adapters, or the model itself where they are off.

    Raises:
        SettingsError: the model has no linear layer of a name to adapt.
    """
    if lora.rank == 0:
        return model
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for target in lora.targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear} - {"0", "2"}))
            raise SettingsError(f"lora.targets: the model has no linear layer {target}; it has {known}")
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
    adapted: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=False)
    return adapted


def empty_model(source: Path, lora: LoraSettings) -> nn.Module:
    """The same modules without weights, to load trained ones into."""
    with torch.device("meta"):
        return with_adapters(AutoModelForImageTextToText.from_config(_config(source)), lora)


def load_model(source: Path, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """A folder's model on the CPU; without weight files, random weights that depend on the seed alone.

    Raises:
        UnknownModelError: the folder is no vision-language model.
    """
    config = _config(source)
    if any(next(source.glob(pattern), None) for pattern in _WEIGHTS):
        model: PreTrainedModel = AutoModelForImageTextToText.from_pretrained(source, config=config, dtype=dtype)
        return model
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    return built


def _config(source: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UnknownModelError(f"model={source}: {str(error).splitlines()[0]}; give a Transformers folder") from error
