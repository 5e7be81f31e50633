"""A pack collated for a stock model: the losses of its samples one at a time, whatever visuals they hold."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.runtime.step_cases import MIXED, Samples

from trimtab.demo.tiny_models import tiny_model
from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.pack_collate import PackCollator


def as_processed(samples: Samples, row: int) -> dict[str, Any]:
    """A sample as a processor gives it: no positions."""
    given = samples.stock_inputs(row)
    labels = torch.full_like(given["input_ids"], -100)
    labels[:, -samples.loss_tokens :] = given["input_ids"][:, -samples.loss_tokens :]
    kept = {name: value for name, value in given.items() if name not in ("position_ids", "use_cache")}
    return {**kept, "labels": labels}


def summed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("rows", [(0, 2, 3), (1, 4), (5,)], ids=["images and videos", "text alone", "one video"])
def test_a_pack_has_the_losses_and_gradients_of_its_samples(family: Any, rows: tuple[int, ...]) -> None:
    stock, model = (tiny_model(family, dtype=torch.float64) for _ in range(2))
    samples = Samples(stock, MIXED)
    expected = torch.zeros((), dtype=torch.float64)
    for row in rows:
        expected = expected + summed_loss(
            stock(**samples.stock_inputs(row)).logits, as_processed(samples, row)["labels"]
        )
    batch = PackCollator(model)([as_processed(samples, row) for row in rows])
    labels = batch.pop("labels")
    assert int((labels != -100).sum()) == samples.loss_tokens * len(rows)
    found = summed_loss(model(**batch).logits, labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    found.backward()
    expected.backward()
    for (name, mine), other in zip(model.named_parameters(), stock.parameters(), strict=True):
        wanted = torch.zeros_like(other) if other.grad is None else other.grad
        assert mine.grad is not None, name  # also of the vision tower, where no sample has a visual
        torch.testing.assert_close(mine.grad, wanted, rtol=1e-9, atol=1e-11, msg=name)


def test_the_first_token_of_a_sample_is_not_learnt_from_the_one_before() -> None:
    collate = PackCollator(tiny_model("qwen2_5_vl"))
    sample = {"input_ids": [5, 6, 7], "labels": [5, 6, 7]}
    assert collate([sample, sample])["labels"].tolist() == [[-100, 6, 7, -100, 6, 7, -100]]


def test_a_collator_for_data_loader_processes_holds_no_weights() -> None:
    model = tiny_model("qwen2_5_vl")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert len(pickle.dumps(PackCollator(model))) < weights / 5


def test_ids_and_labels_of_other_lengths_are_refused() -> None:
    collate = PackCollator(tiny_model("qwen2_5_vl"))
    with pytest.raises(LoaderError, match="3 input_ids but 2 labels"):
        collate([{"input_ids": [3, 4, 5], "labels": [3, 4]}])


def test_a_model_of_text_alone_is_refused() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    with pytest.raises(SettingsError, match="LlamaForCausalLM has no vision tower"):
        PackCollator(LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)))


def test_a_sample_without_labels_is_refused() -> None:
    with pytest.raises(LoaderError, match="a sample to pack has no labels; it has input_ids"):
        PackCollator(tiny_model("qwen2_5_vl"))([{"input_ids": [1, 2]}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_grid_thw": torch.tensor([[1, 4, 4]])}, "24 patches in pixel_values, and image_grid_thw says 16"),
        ({"image_grid_thw": None}, "24 patches in pixel_values, and image_grid_thw says 0"),
        ({"input_ids": torch.arange(9) + 3}, "has 0 placeholders of token .* asks for 6"),
    ],
)
def test_visuals_that_do_not_belong_together_are_refused(change: dict[str, Any], said: str) -> None:
    model = tiny_model("qwen2_5_vl")
    config: Any = model.config
    ids = torch.tensor([3, *[config.image_token_id] * 6, 4, 5])
    values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    sample = {"input_ids": ids, "labels": ids, "pixel_values": torch.zeros(24, values)}
    with pytest.raises(LoaderError, match=said):
        PackCollator(model)([{**sample, "image_grid_thw": torch.tensor([[1, 4, 6]]), **change}])


def test_packs_of_nothing_and_samples_without_names_are_refused() -> None:
    collate = PackCollator(tiny_model("qwen2_5_vl"))
    with pytest.raises(LoaderError, match="no samples"):
        collate([])
    with pytest.raises(LoaderError, match="is a str"):
        collate(["text"])  # type: ignore[list-item]
