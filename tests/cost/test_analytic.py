"""Costs of a batch from architecture and device: the right terms, in whole nanoseconds, in 64 bits."""

import numpy as np
import pytest

from trimtab.cost.analytic import analytic_costs, language_ns, vision_frame_ns
from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.cluster import load_cluster
from trimtab.cost.device import NOMINAL_DEVICE, DeviceSpeed, share_at
from trimtab.cost.flops import FORWARD, TRAIN, TRAIN_RECOMPUTE
from trimtab.cost.from_config import architecture_from_config
from trimtab.cost.models import model_preset, model_presets
from trimtab.cost.polynomial import QUADRATIC, PolynomialCost, polynomial_costs, squared_grid
from trimtab.errors import MetadataError, SettingsError, UnknownModelError
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual

MIMO = model_preset("mimo-vl-7b")


def batch_of(*grids: tuple[int, int, int], text: int = 100) -> BatchMetadata:
    visuals = tuple(Visual(kind="video", grid_t=t, grid_h=h, grid_w=w, source="none") for t, h, w in grids)
    return BatchMetadata.from_samples(
        [SampleMetadata(sample_id="a", text_tokens=text, loss_tokens=1, visuals=visuals)], merge_size=2
    )


def test_a_language_cost_is_linear_plus_half_the_square() -> None:
    lengths = np.array([1000, 2000, 4000])
    ns = language_ns(lengths, MIMO.language, NOMINAL_DEVICE)
    second_difference = ns[2] - 3 * ns[1] + 2 * ns[0]  # f(4x) - 3 f(2x) + 2 f(x) = 6 a x^2 for a l^2 + b l
    pairs_ns = 3.5 * 2 * 36 * 4096 * 1e9 / NOMINAL_DEVICE.flops
    assert second_difference == pytest.approx(6 * pairs_ns * 1e6, rel=1e-6)


def test_a_video_costs_its_frames_not_their_square() -> None:
    costs = analytic_costs(batch_of((1, 20, 20), (50, 20, 20)), MIMO, NOMINAL_DEVICE)
    assert costs.vision_frame_ns[0] == costs.vision_frame_ns[1]


def test_windows_make_large_frames_nearly_linear() -> None:
    assert MIMO.vision is not None
    sides = np.array([[32, 32], [64, 64]])
    windowed = vision_frame_ns(sides, MIMO.vision, NOMINAL_DEVICE)
    qwen3 = model_preset("qwen3-vl-8b").vision
    assert qwen3 is not None
    full = vision_frame_ns(sides, qwen3, NOMINAL_DEVICE)
    assert 4 < windowed[1] / windowed[0] < full[1] / full[0]


def test_inference_and_recomputation() -> None:
    lengths = np.array([8192])
    forward, train, recompute = (
        int(language_ns(lengths, MIMO.language, NOMINAL_DEVICE, passes)[0])
        for passes in (FORWARD, TRAIN, TRAIN_RECOMPUTE)
    )
    assert 3 * forward < train < 3.5 * forward
    assert recompute == pytest.approx(train + forward, abs=2)


def test_the_longest_sequences_stay_in_64_bits() -> None:
    ns = language_ns(np.array([131_072, 1_000_000]), model_preset("qwen2.5-vl-72b").language, NOMINAL_DEVICE)
    assert ns.dtype == np.int64
    assert 0 < ns[0] < ns[1]


def test_short_sequences_reach_less_of_the_peak() -> None:
    h100 = load_cluster("h100").device
    short, long = language_ns(np.array([256, 16_384]), MIMO.language, h100)
    fast = DeviceSpeed(
        flops=h100.flops,
        gemm_share=h100.gemm_share,
        vision_gemm_share=1.0,
        attention_share=((1, 0.671),),
        vision_attention_share=((1, 1.0),),
        window_attention_share=1.0,
    )
    assert short > language_ns(np.array([256]), MIMO.language, fast)[0]
    assert long == language_ns(np.array([16_384]), MIMO.language, fast)[0]


def test_shares_are_interpolated_and_constant_outside() -> None:
    table = ((100, 0.2), (200, 0.4))
    assert share_at(table, np.array([1, 100, 150, 200, 900])).tolist() == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4])


def test_a_text_model_refuses_visuals() -> None:
    text = architecture_from_config(
        {
            "model_type": "qwen2",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "vocab_size": 100,
        }
    )
    with pytest.raises(MetadataError, match="sample a: has visuals, but qwen2 has no vision encoder"):
        analytic_costs(batch_of((1, 4, 4)), text, NOMINAL_DEVICE)
    assert analytic_costs(batch_of(), text, NOMINAL_DEVICE).vision_frame_ns.shape == (0,)


def test_published_costs_by_name() -> None:
    batch = batch_of((3, 4, 6), text=10)
    costs = polynomial_costs(batch, QUADRATIC, squared_grid(batch))
    assert costs.language_ns.tolist() == [28**2]
    assert (costs.vision_frame_ns * batch.grid_thw[:, 0]).tolist() == [(3 * 4 * 6) ** 2]
    assert PolynomialCost(a=0, b=2, c=5)(np.array([10, 0])).tolist() == [25, 0]


@pytest.mark.parametrize("values", [(-1, 0, 0), (0, 0, 0), (float("nan"), 1, 1)])
def test_impossible_coefficients_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError):
        PolynomialCost(a=values[0], b=values[1], c=values[2])


@pytest.mark.parametrize("name", model_presets())
def test_every_bundled_model_has_both_towers(name: str) -> None:
    model = model_preset(name)
    assert model.vision is not None
    assert model.language.legal_degrees(8)[0] == 1


def test_bundled_models_have_their_published_size() -> None:
    """Billions of weights as the model cards round them, norms and biases aside."""
    from trimtab.cost.memory import parameters

    published = {"qwen2.5-vl-7b": 8.3, "qwen2.5-vl-72b": 73.4, "qwen3-vl-8b": 8.8, "qwen3-vl-30b-a3b": 31.1}
    for name, billions in published.items():
        assert parameters(model_preset(name)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_legal_degrees_split_heads() -> None:
    assert model_preset("mimo-vl-7b").language.legal_degrees(8) == (1, 2, 4, 8)
    assert model_preset("qwen2.5-vl-7b").language.legal_degrees(8) == (1, 2, 4)  # 28 heads, 4 KV heads
    odd = LanguageArchitecture(hidden=60, layers=1, heads=6, kv_heads=2, head_dim=10, ffn=1, vocab=1)
    assert odd.legal_degrees(8) == (1, 2, 6)


def test_an_unknown_model_lists_the_known() -> None:
    with pytest.raises(UnknownModelError, match=r"'llava-13b' is not bundled; there are: .*mimo-vl-7b"):
        model_preset("llava-13b")
    with pytest.raises(UnknownModelError, match=r"'bert' has no cost mapping"):
        architecture_from_config({"model_type": "bert"})
    with pytest.raises(UnknownModelError, match=r"config.num_hidden_layers: expected an integer"):
        architecture_from_config({"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 1})
