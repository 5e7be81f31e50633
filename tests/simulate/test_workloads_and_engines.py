"""What is drawn: data sets, mixes, tables, replies; and engines and decoders alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_cases import MODEL

from trimtab.cost.cluster import load_cluster
from trimtab.cost.memory import parameters
from trimtab.cost.models import model_preset
from trimtab.errors import SettingsError
from trimtab.simulate.datasets import DATASETS, MIXES
from trimtab.simulate.decode_pool import DecodePool
from trimtab.simulate.engines import Engine
from trimtab.simulate.replies import reply_lengths, with_replies
from trimtab.simulate.scenario import MediaSettings, RolloutSettings
from trimtab.simulate.workload import drawn_workload, parts_of_mix


@pytest.mark.parametrize("name", [*MIXES, *DATASETS])
def test_every_data_set_gives_legal_samples_and_the_same_again(name: str) -> None:
    first, second = (drawn_workload(name, MODEL, MediaSettings(), least=500, seed=3) for _ in range(2))
    batch = first.samples
    assert (batch.tokens == second.samples.tokens).all()
    assert (batch.text_tokens > 0).all()
    assert (batch.grid_thw[:, 1:] % batch.merge_size == 0).all()
    assert (first.decode_pixels > 0).all()
    assert (first.kept_pixels > 0).all()


def test_nextqa_has_its_published_lengths() -> None:
    work = drawn_workload("nextqa", MODEL, MediaSettings(), least=4000, seed=0)
    frames = work.decode_pixels / np.array([640 * 480, 640 * 360, 320 * 240])[:, None]
    whole = np.isclose(frames, np.rint(frames))
    found = np.where(whole[0], frames[0], np.where(whole[1], frames[1], frames[2]))
    assert np.median(found) == pytest.approx(918, rel=0.1)


def test_internvl_has_the_published_mean_and_deviation() -> None:
    tokens = drawn_workload(
        "internvl", model_preset("internvl-6b-20b"), MediaSettings(), least=9000, seed=0
    ).samples.tokens
    assert tokens.mean() == pytest.approx(1400, rel=0.05)
    assert tokens.std() == pytest.approx(900, rel=0.25)
    assert tokens.max() <= 4096


def test_a_mix_has_its_shares() -> None:
    work = drawn_workload("geo3k:3+nextqa:1", MODEL, MediaSettings(), least=8000, seed=0)
    assert work.samples.is_video.mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("data", ["geo4k", "geo3k:x", "geo3k:0", "geo3k:-1", "geo3k:nan", "geo3k:inf", "geo3k+", ""])
def test_bad_mixes_are_refused(data: str) -> None:
    with pytest.raises(SettingsError, match=r"data="):
        parts_of_mix(data)


def test_data_of_another_form_than_the_model_takes_are_refused() -> None:
    with pytest.raises(SettingsError, match="cuts images to tiles"):
        drawn_workload("geo3k", model_preset("internvl-6b-20b"), MediaSettings(), least=1, seed=0)


def test_an_epoch_has_every_sample_once() -> None:
    work = drawn_workload("geo3k", MODEL, MediaSettings(), least=1, seed=0)
    steps = work.steps(1000, [0])
    rows = np.concatenate([next(steps).rows for _ in range(4)])
    assert len(np.unique(rows)) == 4000
    with pytest.raises(SettingsError, match="batch_size=5000 is more than the 4096 samples"):
        next(work.steps(5000, [0]))


def test_packs_hold_what_fits_and_every_sample_once() -> None:
    work = drawn_workload("heavy-tail", model_preset("internvl-6b-20b"), MediaSettings(), least=1, seed=0)
    steps, seen = work.steps(16, [0], pack_length=32_768), []
    for _ in range(6):
        drawn = next(steps)
        assert drawn.pack_of is not None
        held = np.bincount(drawn.pack_of, work.samples.tokens[drawn.rows])
        assert len(held) == 16
        assert held.max() <= 32_768
        assert (drawn.dealt(16) == drawn.pack_of % 16).all()
        seen.append(drawn.rows)
    rows = np.concatenate(seen)
    assert len(np.unique(rows)) == len(rows)
    with pytest.raises(SettingsError, match="pack_length=1000 is less than the"):
        next(work.steps(16, [0], pack_length=1000))


def test_replies_share_their_prompts_visuals() -> None:
    prompts = drawn_workload("geo3k", MODEL, MediaSettings(), least=1, seed=0).samples.take([3, 4])
    lengths = reply_lengths(RolloutSettings(replies=3), 2, 0, 0)
    batch = with_replies(prompts, lengths)
    assert batch.loss_tokens.tolist() == lengths.reshape(-1).tolist()
    assert (batch.tokens == np.repeat(prompts.tokens, 3) + lengths.reshape(-1)).all()
    assert batch.visual_keys.tolist() == np.repeat(prompts.visual_keys, 3).tolist()


def test_reply_lengths_have_the_wanted_mean_and_cap() -> None:
    lengths = reply_lengths(RolloutSettings(mean_tokens=300, spread=0.4, max_tokens=1024), 20_000, 0, 0)
    assert lengths.mean() == pytest.approx(300, rel=0.02)
    assert lengths.max() <= 1024
    assert (reply_lengths(RolloutSettings(spread=0.0, mean_tokens=50), 3, 0, 0) == 50).all()


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=30), st.integers(1, 8))
def test_decoding_is_never_faster_than_its_work_or_its_longest_item(seconds: list[float], workers: int) -> None:
    done = DecodePool(workers).decode(0.0, np.array(seconds))
    assert done >= max(sum(seconds) / workers, *seconds) - 1e-9
    assert done <= sum(seconds) / workers + max(seconds) + 1e-9


def test_a_pool_goes_on_where_it_was() -> None:
    pool = DecodePool(2)
    assert pool.decode(0.0, np.array([4.0, 1.0])) == 4.0
    assert pool.decode(0.0, np.array([2.0])) == 3.0
    assert pool.decode(9.0, np.array([])) == 9.0


def engine(**changed: float) -> Engine:
    cluster = load_cluster("h800")
    return Engine.of(MODEL.language, parameters(MODEL), cluster, RolloutSettings(**changed))  # type: ignore[arg-type]


def test_generation_waits_for_the_longest_reply_and_waves_add_up() -> None:
    prompts, replies = np.array([1000, 1000]), np.array([[10, 10], [10, 400]])
    one = engine().generation_seconds(prompts, replies)
    assert one > engine().generation_seconds(prompts, np.full((2, 2), 10)) * 5
    tight = engine(memory_share=(2 * parameters(MODEL) + 0.25e9) / (4 * 80e9))
    apart = sum(tight.generation_seconds(prompts[i : i + 1], replies[i : i + 1]) for i in range(2))
    assert tight.cache_room < 0.25e9 + 1e6
    assert tight.generation_seconds(prompts, replies) == pytest.approx(apart)
    assert apart > one


def test_rollout_needs_a_clusters_memory_bandwidth() -> None:
    cluster = replace(load_cluster("h800"), memory_bandwidth=None)
    with pytest.raises(SettingsError, match="memory_bandwidth is needed"):
        Engine.of(MODEL.language, parameters(MODEL), cluster, RolloutSettings())
