"""Small models, batches as a processor gives them, and what a step of them holds."""

from __future__ import annotations

from typing import Any

import torch

from trimtab.demo.tiny_models import TinyFamily, tiny_model
from trimtab.runtime.memory_meter import TensorMemory

Batch = dict[str, torch.Tensor]


def model_of(family: TinyFamily) -> Any:
    return tiny_model(family).train()


def batch_of(config: Any, side: int = 16, text: int = 150) -> Batch:
    """One image and text, as a processor gives them."""
    draw = torch.Generator().manual_seed(0)
    image = [config.vision_start_token_id, *[config.image_token_id] * (side * side // 4), config.vision_end_token_id]
    ids = torch.cat([torch.tensor(image), torch.randint(3, 90, (text,), generator=draw)])[None]
    width = 3 * 2 * config.vision_config.patch_size**2
    return {
        "input_ids": ids,
        "labels": ids,
        "mm_token_type_ids": (ids == config.image_token_id).int(),
        "pixel_values": torch.randn(side * side, width, generator=draw),
        "image_grid_thw": torch.tensor([[1, side, side]]),
    }


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    return model(**batch, use_cache=False).loss


def gradients(model: Any, batch: Batch) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss_of(model, batch).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def peak_of(model: Any, batch: Batch) -> int:
    """The most bytes of a step whose gradients exist already."""
    gradients(model, batch)
    held = [*model.parameters(), *(weight.grad for weight in model.parameters())]
    with TensorMemory(held, batch.values()) as memory:
        loss_of(model, batch).backward()
    return memory.peak_bytes
