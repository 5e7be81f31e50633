"""Families whose images are tiles: what balance hands to each rank gives the model the loss and gradients it had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.runtime.balanced_loop import costs_of
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
)

from trimtab.families.llava_onevision import LLAVA_ONEVISION_BATCHES
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.testing import run_threads

IMAGE, VIDEO = 100, 101
TEXT = {
    "model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 120, "pad_token_id": 0,
}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def padded(samples: list[list[int]]) -> dict[str, Any]:
    length = max(map(len, samples))
    ids = torch.tensor([each + [0] * (length - len(each)) for each in samples])
    mask = torch.tensor([[1] * len(each) + [0] * (length - len(each)) for each in samples])
    labels = torch.where((mask == 1) & (ids < IMAGE), ids, -100)
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def loss_of(model: Any, batches: list[dict[str, Any]]) -> tuple[float, list[torch.Tensor]]:
    """Sum of token losses, and gradients."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "image_flags")}
        if "image_flags" in batch:
            inputs["pixel_values"] = inputs["pixel_values"][batch["image_flags"].flatten() != 0]
            if not len(inputs["pixel_values"]):
                del inputs["pixel_values"]
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum")
        loss.backward()
        total = total + loss.detach()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return float(total), grads


def check(model: Any, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    before = loss_of(model, batches)

    def run(group: dist.ProcessGroup) -> tuple[dict[str, Any], int]:
        balancer = BatchBalancer.for_model(model.config, group, BalancerSettings(threshold=0), cost_model=costs_of)
        step = balancer.balance([batches[group.rank()]])
        return step.micro_batches[0], balancer.totals.applied

    found = run_threads(len(batches), run)
    assert all(applied for _, applied in found)
    after = loss_of(model, [batch for batch, _ in found])
    assert after[0] == pytest.approx(before[0], rel=1e-12)
    for found_grad, wanted in zip(after[1], before[1], strict=True):
        torch.testing.assert_close(found_grad, wanted, rtol=1e-9, atol=1e-11)
    return [batch for batch, _ in found]


@pytest.fixture(scope="module")
def internvl() -> Any:
    vision = {**VISION, "image_size": [28, 28], "patch_size": [7, 7]}
    torch.manual_seed(0)
    config = InternVLConfig(text_config=TEXT, vision_config=vision, image_token_id=IMAGE, image_seq_length=4)
    return InternVLForConditionalGeneration(config).double().eval()


@pytest.mark.parametrize("flags", [False, True])
def test_internvl(internvl: Any, flags: bool) -> None:
    """Rank 0 holds four tiles in two samples, rank 1 no image but perhaps a tile that only keeps its shape."""
    draw = torch.Generator().manual_seed(0)
    first = padded([[5, *[IMAGE] * 12, 7, 8], [9, *[IMAGE] * 4, 6, 3, 2, 5, 9], [3, 4, 5, 6]])
    first["pixel_values"] = torch.randn(4, 3, 28, 28, generator=draw, dtype=torch.float64)
    second = padded([[5, 6, 7, 4, 2]])
    if flags:
        first["image_flags"] = torch.ones(4, 1, dtype=torch.int64)
        second["pixel_values"] = torch.zeros(1, 3, 28, 28, dtype=torch.float64)
        second["image_flags"] = torch.zeros(1, 1, dtype=torch.int64)
    found = check(internvl, [first, second])
    tiles = sum(int(batch["image_flags"].sum()) for batch in found) if flags else None
    assert tiles in (None, 4)


@pytest.fixture(scope="module")
def llava() -> Any:
    vision = {"model_type": "siglip_vision_model", **VISION, "image_size": 28, "patch_size": 7}
    points = [[28 * high, 28 * wide] for high in range(1, 5) for wide in range(1, 5)]
    config = LlavaOnevisionConfig(
        text_config=TEXT, vision_config=vision, image_grid_pinpoints=points, image_token_index=IMAGE,
        video_token_index=VIDEO, vision_feature_layer=-1,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlavaOnevisionForConditionalGeneration(config).double().eval()


def images(config: Any, samples: list[list[tuple[int, int]]], seed: int) -> tuple[list[int], dict[str, Any]]:
    """Tokens of each image, and the batch keys of samples' images of the given sizes."""
    sizes = np.array([size for sample in samples for size in sample])
    columns = {"image_sizes": sizes, "batch_num_images": np.array([len(sample) for sample in samples])}
    measured = LLAVA_ONEVISION_BATCHES.streams[0].measure(config.to_dict(), columns, (len(sizes), 1, 3, 28, 28))
    pixels = torch.zeros(len(sizes), int(measured.pixel_rows.max()), 3, 28, 28, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    for index, rows in enumerate(measured.pixel_rows.tolist()):
        pixels[index, :rows] = torch.randn(rows, 3, 28, 28, generator=draw, dtype=torch.float64)
    batch = {"pixel_values": pixels, "image_sizes": torch.from_numpy(sizes)}
    return measured.tokens.tolist(), batch | {"batch_num_images": torch.from_numpy(columns["batch_num_images"])}


def test_llava_onevision(llava: Any) -> None:
    """One image tiled, two images of one sample whole, none, and ranks with different numbers of tiles."""
    tokens, visuals = images(llava.config, [[(100, 60)], [(40, 40), (20, 90)], []], seed=1)
    text = [[5, *[IMAGE] * tokens[0], 7, 8], [6, *[IMAGE] * tokens[1], 9, *[IMAGE] * tokens[2], 3, 4], [5, 6, 7]]
    other, few = images(llava.config, [[(28, 28)]], seed=2)
    check(llava, [padded(text) | visuals, padded([[4, *[IMAGE] * other[0], 5, 6]]) | few])


def test_llava_onevision_videos(llava: Any) -> None:
    draw = torch.Generator().manual_seed(3)
    tokens = 3 * 4 + 1
    first = padded([[5, *[VIDEO] * tokens, 7, 8], [9, 4, *[VIDEO] * tokens, 7, 8, 8]])
    first["pixel_values_videos"] = torch.randn(2, 3, 3, 28, 28, generator=draw, dtype=torch.float64)
    check(llava, [first, padded([[5, 6, 7]])])
