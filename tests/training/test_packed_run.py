"""Supervised runs on packs: the same loss, every sample once an epoch, resume, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.small_run import steps_of, train_on_rank, write_run
from transformers import AutoModelForImageTextToText

from trimtab.errors import CheckpointError
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.settings import BalanceSettings, OptimizerSettings, SFTSettings

FAST = OptimizerSettings(learning_rate=3e-3, warmup_steps=1)
OFF = PackingSettings()
COUNTED = BalanceSettings(costs="analytic")
AS_DEALT, CENTRAL = BalanceSettings(mode="off", costs="analytic"), LoaderSettings(mode="central")
PAIRS = PackingSettings(method="best", tokens=90)  # four packs of eight samples
UNEVEN = PackingSettings(method="best", tokens=130)  # three packs: one of two ranks has an empty micro-batch


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Eight samples of 24 to 86 tokens: images, two images, a video, text alone."""
    return write_run(tmp_path_factory.mktemp("packed"), samples=8, photos=False)


def settings_for(files: dict[str, Any], name: str, **changes: Any) -> SFTSettings:
    plain: dict[str, Any] = {"steps": 2, "samples_per_step": 8, "name": name, "timeout_s": 30, "optimizer": FAST}
    plain["balance"] = COUNTED
    return SFTSettings(**{**files, **plain, "dtype": "float64", **changes})


def losses(settings: SFTSettings) -> list[float]:
    return [step["loss"] for step in steps_of(settings)]


def samples_of(settings: SFTSettings) -> list[int]:
    return [step["samples"] for step in steps_of(settings)]


def weights(settings: SFTSettings) -> dict[str, torch.Tensor]:
    return dict(
        AutoModelForImageTextToText.from_pretrained(settings.folder / "model", dtype=torch.float64).state_dict()
    )


@pytest.fixture(scope="module")
def unpacked(rank_pool: RankPool, files: dict[str, Any]) -> SFTSettings:
    """A run without packing, every step of which holds all samples."""
    settings = settings_for(files, "unpacked")
    assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    return settings


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"packing": UNEVEN}, id="best, balanced"),
        pytest.param(
            {"packing": PackingSettings(method="isf", tokens=110), "balance": AS_DEALT, "loader": CENTRAL},
            id="isf, where dealt, loaded centrally",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_packed_trains_as_unpacked_does(
    rank_pool: RankPool, files: dict[str, Any], unpacked: SFTSettings, changes: dict[str, Any]
) -> None:
    """Steps of the same samples give the same losses and weights, however these are packed."""
    packed = settings_for(files, "packed", **changes)
    assert rank_pool.run(2, train_on_rank, packed) == [True, True]
    assert samples_of(packed) == samples_of(unpacked) == [8, 8]
    assert losses(packed) == pytest.approx(losses(unpacked), rel=1e-10)
    expected = weights(unpacked)
    for name, tensor in weights(packed).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_resume_is_exact_and_on_other_ranks_exactly_once(rank_pool: RankPool, files: dict[str, Any]) -> None:
    def part(name: str, **changes: Any) -> SFTSettings:
        return settings_for(files, name, steps=4, samples_per_step=4, packing=PAIRS, **changes)

    rank_pool.run(2, train_on_rank, part("parts", stop_after=1))
    rank_pool.run(2, train_on_rank, part("parts", stop_after=2, resume=True))
    rank_pool.run(2, train_on_rank, part("whole", stop_after=2))
    assert losses(part("parts")) == losses(part("whole"))
    assert sum(samples_of(part("whole"))) == 8

    rank_pool.run(2, train_on_rank, part("fewer", stop_after=1))
    rank_pool.run(1, train_on_rank, part("fewer", resume=True))
    assert 8 in np.cumsum(samples_of(part("fewer"))).tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PAIRS, OFF),
        pytest.param(OFF, PAIRS, marks=pytest.mark.slow),
        pytest.param(PAIRS, PackingSettings(method="isf", tokens=90), marks=pytest.mark.slow),
        (PAIRS, UNEVEN),
    ],
    ids=["packs, then none", "none, then packs", "another method", "another cap"],
)
@pytest.mark.slow
def test_resume_with_other_packing_is_refused(
    rank_pool: RankPool, files: dict[str, Any], before: PackingSettings, after: PackingSettings
) -> None:
    name = f"{before.method}-{after.method}-{after.tokens}"
    begun = settings_for(files, name, steps=4, samples_per_step=2, packing=before, stop_after=1)
    rank_pool.run(1, train_on_rank, begun)
    with pytest.raises(CheckpointError, match="pack"):
        rank_pool.run(1, train_on_rank, settings_for(files, name, steps=4, packing=after, resume=True))


@pytest.mark.slow
def test_samples_no_pack_can_hold_are_listed(rank_pool: RankPool, files: dict[str, Any]) -> None:
    tight = PackingSettings(method="best", tokens=60, on_oversized="skip")
    settings = settings_for(files, "tight", steps=1, packing=tight)
    rank_pool.run(1, train_on_rank, settings)
    assert samples_of(settings) == [7]
    assert json.loads((settings.folder / "left_out.json").read_text()) == [
        {"sample_id": "sample-5", "reason": "tokens=86 exceeds its cap of 60"}
    ]


@pytest.mark.slow
def test_a_bad_sample_takes_no_other_of_its_pack_with_it(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, samples=8, photos=False)
    (tmp_path / "media" / "4-0.jpg").write_bytes(b"no image")
    skip = LoaderSettings(on_bad_sample="skip", prefetch=1)
    settings = settings_for(files, "bad", steps=5, packing=UNEVEN, loader=skip)
    rank_pool.run(2, train_on_rank, settings)
    assert [step["bad_samples"] for step in steps_of(settings)] == [["sample-4"]] * 5
    assert samples_of(settings) == [8, 8, 8, 8, 9]  # its replacement joins the first step no rank had planned
