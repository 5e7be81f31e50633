"""From a table to a sampler of packs: caps from the data, and steps of about the wanted size on any ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.loader.pack_sampler import PackSampler
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.pack_table import pack_table
from trimtab.planning.workloads import generated_batch
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


class Table:
    """Generated sizes where a metadata table is asked for."""

    def __init__(self, samples: int) -> None:
        self._batch = generated_batch("image-heavy", samples, seed=0)

    def batch(self) -> BatchMetadata:
        return self._batch


def costs(batch: BatchMetadata) -> Costs:
    return Costs(language_ns=batch.tokens**2, vision_frame_ns=batch.grid_thw[:, 1:].prod(axis=1))


def packed(ranks: int, samples_per_step: int = 32, samples: int = 300, **settings: object) -> PackSampler:
    wanted = PackingSettings(**{"method": "best", **settings})  # type: ignore[arg-type]
    return pack_table(
        Table(samples),  # type: ignore[arg-type]
        wanted,
        cost_model=costs,
        ranks=ranks,
        samples_per_step=samples_per_step,
        seed=0,
    )


def test_caps_chosen_from_the_data_are_the_same_on_any_ranks() -> None:
    tables = {packed(ranks).state_dict()["table_and_caps"] for ranks in (1, 2, 8)}
    assert len(tables) == 1
    assert not packed(2).left_out()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_steps_hold_about_the_wanted_samples_on_any_ranks(ranks: int) -> None:
    sampler = packed(ranks, samples_per_step=64, tokens=66_000)
    assert sampler.micro_batches == 4 // ranks
    assert 300 / sampler.steps_per_epoch == pytest.approx(64, rel=0.1)


def test_every_rank_has_at_least_a_pack() -> None:
    assert packed(8, samples_per_step=1).micro_batches == 1


def test_two_samples_and_more_ranks_are_packed_too() -> None:
    assert packed(4, samples=2).rows(0).tolist() != []


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 8), ({"max_samples": 3}, 3), ({"tokens": 66_000, "max_samples": 5}, 5), ({"method": "isf"}, 8)],
)
def test_no_pack_holds_more_samples_than_the_cap(settings: dict[str, Any], most: int) -> None:
    sampler = packed(2, **settings)
    for step in range(sampler.steps_per_epoch):
        assert np.bincount(sampler.pack_of(step)).max() <= most


def test_a_sample_no_pack_can_hold_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"sample image-heavy/\d+: tokens=\d+ exceeds its cap of 40000"):
        packed(2, tokens=40_000)
    names = {name for name, _ in packed(2, tokens=40_000, on_oversized="skip").left_out()}
    tokens = dict(zip(Table(300).batch().sample_ids, Table(300).batch().tokens.tolist(), strict=True))
    assert names == {name for name, size in tokens.items() if size > 40_000}


def test_packing_that_is_off_packs_nothing() -> None:
    with pytest.raises(SettingsError, match="choose best or isf"):
        packed(2, method="off")


@pytest.mark.parametrize(
    ("name", "value"), [("tokens", 0), ("samples_per_pack", 0), ("max_samples", 0), ("pool", 1), ("window", 0)]
)
def test_numbers_out_of_range_are_named(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=rf"packing\.{name}={value} must be at least"):
        PackingSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("method", "worst"), ("on_oversized", "foo")])
def test_unknown_words_are_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"packing\.{name}='{value}' is none of"):
        PackingSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 0}, "ranks=0 must be at least 1"),
        ({"ranks": 2.5}, r"ranks=2\.5 must be a whole number"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"samples_per_step": 0}, "samples_per_step=0 must be at least 1"),
    ],
)
def test_numbers_of_a_run_are_checked(given: dict[str, Any], said: str) -> None:
    numbers: dict[str, Any] = {"ranks": 2, "samples_per_step": 8, "seed": 0}
    with pytest.raises(SettingsError, match=said):
        pack_table(Table(20), PackingSettings(method="best"), cost_model=None, **{**numbers, **given})  # type: ignore[arg-type]
