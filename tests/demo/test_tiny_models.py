import pytest
import torch
from transformers import AutoConfig

from trimtab.demo.tiny_models import TinyFamily, tiny_config, tiny_model

FAMILIES: tuple[TinyFamily, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
GRIDS = [[1, 4, 4], [1, 8, 6]]


def inputs(config: AutoConfig) -> dict[str, torch.Tensor]:
    ids = [1]
    for t, h, w in GRIDS:
        ids += [config.vision_start_token_id, *[config.image_token_id] * (t * h * w // 4), config.vision_end_token_id]
        ids += range(40, 47)
    input_ids = torch.tensor([ids])
    patches = sum(t * h * w for t, h, w in GRIDS)
    width = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    pixels = torch.randn(patches, width, generator=torch.Generator().manual_seed(0))
    types = (input_ids == config.image_token_id).int()
    return {
        "input_ids": input_ids,
        "labels": input_ids,
        "mm_token_type_ids": types,
        "pixel_values": pixels,
        "image_grid_thw": torch.tensor(GRIDS),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_backward_reach_every_weight(family: TinyFamily) -> None:
    model = tiny_model(family)
    loss = model(**inputs(model.config)).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert all(weight.grad.abs().sum() > 0 for name, weight in model.named_parameters() if "visual.blocks" in name)


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_change_the_logits(family: TinyFamily) -> None:
    model = tiny_model(family)
    batch = inputs(model.config)
    with torch.no_grad():
        seen = model(**batch).logits
        blank = model(**{**batch, "pixel_values": torch.zeros_like(batch["pixel_values"])}).logits
    assert not torch.allclose(seen, blank)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_are_small_and_of_their_family(family: TinyFamily) -> None:
    model = tiny_model(family)
    assert model.config.model_type == family
    assert sum(weight.numel() for weight in model.parameters()) < 500_000


def test_a_seed_gives_the_same_weights_in_every_dtype_and_spares_the_callers_random_state() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    single, double = tiny_model("qwen2_5_vl", seed=3), tiny_model("qwen2_5_vl", seed=3, dtype=torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(one.double(), other)
    assert not torch.equal(tiny_model("qwen2_5_vl", seed=4).lm_head.weight, single.lm_head.weight)


def test_qwen2_5_vl_keeps_windows_and_qwen3_vl_its_deepstack() -> None:
    assert tiny_config("qwen2_5_vl").vision_config.fullatt_block_indexes == [2]
    assert tiny_config("qwen3_vl").vision_config.deepstack_visual_indexes == [0, 1]


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown family 'llava'"):
        tiny_config("llava")  # type: ignore[arg-type]
