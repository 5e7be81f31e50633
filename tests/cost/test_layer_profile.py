"""Layer profiles from an architecture add up to what the whole model costs and keeps."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.cost.analytic import language_ns, vision_frame_ns
from trimtab.cost.cluster import load_cluster
from trimtab.cost.flops import TRAIN
from trimtab.cost.layer_profile import MicroBatch, layer_profile
from trimtab.cost.memory import parameters, vision_parameters
from trimtab.cost.models import model_preset, model_presets
from trimtab.errors import MetadataError, SettingsError
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.schema.stages import LayerProfile

CLUSTER = load_cluster("a100")
PACK = MicroBatch.of_pack(6016, 18)


def profile_of(name: str, micro_batch: MicroBatch = PACK, **options: int) -> LayerProfile:
    return layer_profile(model_preset(name), CLUSTER.device, micro_batch, CLUSTER.across, **options)


@pytest.mark.parametrize("name", model_presets())
def test_layers_add_up_to_the_model(name: str) -> None:
    architecture = model_preset(name)
    assert architecture.vision is not None
    profile = profile_of(name, optimizer_shards=8)
    layers = architecture.vision.depth + architecture.language.layers
    assert len(profile) == layers + 4
    assert profile.parameters.sum() == parameters(architecture) + (
        architecture.language.hidden * architecture.language.vocab if architecture.language.tied else 0
    )
    vision = [kind == "vision" or row == 0 or kind == "projector" for row, kind in enumerate(profile.kinds)]
    assert profile.parameters[vision].sum() == vision_parameters(architecture.vision)
    work = profile.forward_ns + profile.backward_ns
    frames = vision_frame_ns(PACK.frames, architecture.vision, CLUSTER.device, TRAIN).sum()
    assert work[vision].sum() == pytest.approx(frames, rel=1e-5)
    sequence = language_ns(PACK.lengths, architecture.language, CLUSTER.device, TRAIN)[0]
    assert work[np.logical_not(vision)].sum() == pytest.approx(sequence, rel=1e-5)
    assert (profile.state_bytes == profile.parameters * 4 + -(-profile.parameters * 12 // 8)).all()


def test_a_windowed_layer_costs_less_than_a_full_one() -> None:
    profile = profile_of("qwen2.5-vl-7b", MicroBatch.of_batch(batch_of((1, 64, 64))))
    times = dict(zip(profile.names, profile.forward_ns.tolist(), strict=True))
    assert times["vision.7"] > times["vision.6"] == times["vision.8"]


def test_deepstack_features_travel_until_they_are_used() -> None:
    profile = profile_of("qwen3-vl-8b")
    sent = dict(zip(profile.names, profile.boundary_bytes.tolist(), strict=True))
    features = sent["vision.8"] - sent["vision.7"]
    assert features == 2 * 4096 * PACK.patches // 4
    assert sent["vision.16"] - sent["vision.15"] == sent["vision.24"] - sent["vision.23"] == features
    assert sent["language.0"] - sent["language.1"] == sent["language.1"] - sent["language.2"] == features
    assert sent["language.2"] == sent["language.35"] == 2 * 4096 * PACK.tokens


def test_attention_stays_within_a_sequence() -> None:
    whole = profile_of("internvl-6b-20b").forward_ns[50]
    split = MicroBatch(lengths=np.full(4, 1504), frames=PACK.frames)
    assert profile_of("internvl-6b-20b", split).forward_ns[50] < whole


def batch_of(*grids: tuple[int, int, int]) -> BatchMetadata:
    visuals = tuple(Visual(kind="image", grid_t=t, grid_h=h, grid_w=w, source="x") for t, h, w in grids)
    return BatchMetadata.from_samples(
        [SampleMetadata(sample_id="a", text_tokens=10, loss_tokens=5, visuals=visuals)], 2
    )


def test_a_batch_gives_its_frames_and_its_spread() -> None:
    recorded = [MicroBatch.of_batch(batch_of((2, 32, 32))), MicroBatch.of_batch(batch_of((1, 32, 32)))]
    assert recorded[0].frames.tolist() == [[32, 32], [32, 32]]
    assert recorded[0].tokens == 10 + 2 * 256
    spread = layer_profile(
        model_preset("internvl-6b-20b"), CLUSTER.device, PACK, CLUSTER.across, spread=recorded
    ).spread
    assert spread is not None
    assert spread.forward_ns.shape == (2, 97)
    assert (spread.forward_ns[0, 1:46] == 2 * spread.forward_ns[1, 1:46]).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        MetadataError, match=r"18 images are 4608 tokens .* more than its 4000 tokens; use at least 4608"
    ):
        profile_of("internvl-6b-20b", MicroBatch.of_pack(4000, 18))
    with pytest.raises(MetadataError, match="at least 1 token"):
        profile_of("internvl-6b-20b", MicroBatch.of_pack(0, 0))
    with pytest.raises(SettingsError, match="optimizer_shards=0"):
        profile_of("internvl-6b-20b", optimizer_shards=0)
