"""Writes the trained model as a Transformers folder that ``from_pretrained`` loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from trimtab.errors import CheckpointError
from trimtab.runtime.vlm import BalancedVLM
from trimtab.training.model import empty_model
from trimtab.training.settings import LoraSettings

_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")


def export(model: BalancedVLM, lora: LoraSettings, source: Path, target: Path, group: dist.ProcessGroup) -> None:
    """Gather the weights on rank 0 and write them with the source folder's tokenizer and processor files.

    Adapters are merged into the weights they adapt. A collective of ``group``.

    Raises:
        CheckpointError: rank 0 could not write; raised on every rank.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    failure: list[str | None] = [None]
    if group.rank() == 0:
        try:
            _write(weights, lora, source, target)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(_aside(target), ignore_errors=True)
            failure = [f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(failure, group=group, group_src=0)
    if failure[0] is not None:
        raise CheckpointError(f"rank 0 could not write the model to {target}: {failure[0]}; free space and resume")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _write(weights: dict[str, Any], lora: LoraSettings, source: Path, target: Path) -> None:
    aside = _aside(target)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for pattern in _COPIED:
        for path in source.glob(pattern):
            if not path.name.endswith(".index.json"):
                shutil.copy(path, aside / path.name)
    model: Any = empty_model(source, lora)
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()}, assign=True)
    if lora.rank:
        model = model.merge_and_unload()
    model.save_pretrained(aside)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
