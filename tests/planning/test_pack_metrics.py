"""Pad and dist ratio as defined, plain batches, predicted gain, and caps chosen from the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import SettingsError
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.metrics import Spread, dist_ratio, pad_ratio
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.plain_batches import length_grouped_batches, random_batches
from trimtab.planning.packing.sample_loads import PATCHES_PER_TILE, SampleLoads
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_time import packing_gain
from trimtab.planning.packing.thresholds import choose_caps
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual


def vlm_loads(samples: int = 2000, seed: int = 0) -> SampleLoads:
    rng = np.random.default_rng(seed)
    tiles = rng.choice([1, 3, 4, 5], p=[0.2, 0.16, 0.02, 0.62], size=samples)
    tokens = tiles * 256 + rng.integers(20, 400, samples)
    return SampleLoads(
        patches=tiles * PATCHES_PER_TILE, tokens=tokens, vision_ns=tiles * 300_000, language_ns=tokens * 1000
    )


def test_pad_ratio_is_the_published_sum() -> None:
    """(10-10 + 10-5) / (10*2) = 0.25 and (8-2 + 8-8) / (8*2) = 0.375."""
    batches = Packs(rows=np.arange(4), offsets=np.array([0, 2, 4]))
    assert pad_ratio(batches, np.array([10, 5, 2, 8])) == pytest.approx((0.25 + 0.375) / 2)
    assert pad_ratio(batches, np.array([3, 3, 3, 3])) == 0
    assert pad_ratio(batches, np.zeros(4, dtype=np.int64)) == 0


def test_dist_ratio_is_the_published_sum() -> None:
    """(8-8 + 8-4) / (8*2) = 0.25; a step without any load wastes nothing."""
    assert dist_ratio(np.array([[8, 4], [6, 6]])) == pytest.approx(0.125)
    assert dist_ratio(np.array([[0, 0]])) == 0
    assert dist_ratio(np.zeros((0, 4), dtype=np.int64)) == 0


def test_spread_is_mean_and_deviation() -> None:
    assert Spread.of(np.array([1, 3])) == Spread(mean=2, sd=1)
    assert Spread.of(np.zeros(0)) == Spread(mean=0, sd=0)


@given(samples=st.integers(0, 60), batch=st.integers(1, 5), ranks=st.integers(1, 4))
def test_length_grouped_batches_hold_a_sample_at_most_once(samples: int, batch: int, ranks: int) -> None:
    tokens = np.random.default_rng(1).integers(1, 100, samples)
    batches = length_grouped_batches(tokens, batch, ranks, np.random.default_rng(0))
    assert len(set(batches.rows.tolist())) == len(batches.rows) == samples // (batch * ranks) * batch * ranks
    assert (batches.counts == batch).all()


def test_length_grouped_batches_even_out_a_step() -> None:
    tokens = np.random.default_rng(1).integers(1, 1000, 3200)
    grouped = length_grouped_batches(tokens, 4, 8, np.random.default_rng(0)).sums(tokens).reshape(-1, 8)
    plain = random_batches(3200, 4, np.random.default_rng(0)).sums(tokens).reshape(-1, 8)
    assert dist_ratio(grouped) < dist_ratio(plain) / 4


def test_a_padded_batch_costs_as_much_as_its_longest_times_its_size() -> None:
    samples = SampleLoads(
        patches=np.array([1024, 0]),
        tokens=np.array([300, 100]),
        vision_ns=np.array([7, 0]),
        language_ns=np.array([40, 10]),
    )
    batch = Packs(rows=np.arange(2), offsets=np.array([0, 2]))
    assert samples.of_padded(batch).columns().tolist() == [[1024, 600, 87]]
    assert samples.of_packs(batch).columns().tolist() == [[1024, 400, 57]]


def test_loads_of_a_batch_sum_over_its_visuals() -> None:
    video = Visual(kind="video", grid_t=3, grid_h=4, grid_w=4, source="a")
    image = Visual(kind="image", grid_t=1, grid_h=2, grid_w=2, source="b")
    samples = [
        SampleMetadata(sample_id="both", text_tokens=10, loss_tokens=5, visuals=(video, image)),
        SampleMetadata(sample_id="text", text_tokens=7, loss_tokens=5),
    ]
    batch = BatchMetadata.from_samples(samples, merge_size=2)
    costs = Costs(language_ns=np.array([90, 9]), vision_frame_ns=np.array([100, 20]))
    loads = SampleLoads.from_batch(batch, costs)
    assert loads.patches.tolist() == [52, 0]
    assert loads.tokens.tolist() == [10 + 12 + 1, 7]
    assert loads.cost_ns is not None
    assert loads.cost_ns.tolist() == [90 + 320, 9]
    problem = loads.problem(patches=60, tokens=50, cost_ns=500)
    assert dict(zip(problem.resources, problem.caps, strict=True)) == {"patches": 60, "tokens": 50, "cost_ns": 500}


def test_packing_uneven_samples_pays() -> None:
    samples, settings = vlm_loads(), PackSettings()
    packs = pack_epoch(samples.problem(patches=18 * PATCHES_PER_TILE, tokens=6016), settings, seed=0, epoch=0)
    gain = packing_gain(samples, packs, batch=4, ranks=8, settings=settings, seed=0)
    assert gain.pays
    assert gain.gain > 1.15
    assert "as fast as random batches of 4, by predicted cost" in str(gain)


def test_it_says_so_where_packing_would_not_pay() -> None:
    """Samples that are all alike: batches have no padding, ranks nothing to wait for."""
    samples = SampleLoads(patches=np.zeros(512, dtype=np.int64), tokens=np.full(512, 100))
    packs = pack_epoch(samples.problem(patches=None, tokens=400), PackSettings(), seed=0, epoch=0)
    gain = packing_gain(samples, packs, batch=4, ranks=8, settings=PackSettings(), seed=0)
    assert not gain.pays
    assert str(gain).startswith("packing would not pay: 1.00x")
    assert "tokens alone (no model given)" in str(gain)


def test_published_isf_loses_to_random_batches_at_tight_caps() -> None:
    """And is told to."""
    samples, settings = vlm_loads(), PackSettings(method="isf")
    packs = pack_epoch(samples.problem(patches=9 * PATCHES_PER_TILE, tokens=4096), settings, seed=0, epoch=0)
    assert not packing_gain(samples, packs, batch=4, ranks=8, settings=settings, seed=0).pays


@pytest.mark.parametrize("batch", [1, 4])
def test_chosen_caps_hold_about_as_many_samples_as_a_batch(batch: int) -> None:
    samples = vlm_loads(1000)
    choice = choose_caps(samples, batch=batch, ranks=8, settings=PackSettings(), seed=0)
    assert batch <= choice.samples_per_pack <= batch + 1
    assert choice.patches % PATCHES_PER_TILE == 0
    assert len(samples.problem(patches=choice.patches, tokens=choice.tokens).oversized()) == 0
    assert choice.gain.pays


def test_chosen_caps_hold_the_one_large_sample() -> None:
    samples = vlm_loads(500)
    samples.tokens[5] = 50_000
    assert choose_caps(samples, batch=2, ranks=4, settings=PackSettings(), seed=0).tokens == 50_000


def test_too_few_samples_to_compare_are_refused() -> None:
    with pytest.raises(SettingsError, match="20 samples do not fill a step of 8 batches of 4"):
        choose_caps(vlm_loads(20), batch=4, ranks=8, settings=PackSettings(), seed=0)
