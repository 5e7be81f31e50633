"""Small supervised runs for tests: their settings, and what they leave."""

from __future__ import annotations

from typing import Any

import torch
from tests.training.small_run import steps_of
from transformers import AutoModelForImageTextToText

from trimtab.loader.settings import LoaderSettings
from trimtab.training.settings import BalanceSettings, OptimizerSettings, SFTSettings

ON = BalanceSettings(costs="analytic")
OFF, CENTRAL, SKIP = (
    BalanceSettings(mode="off", costs="analytic"),
    LoaderSettings(mode="central"),
    LoaderSettings(on_bad_sample="skip"),
)
FAST = OptimizerSettings(learning_rate=3e-3, warmup_steps=1)


def settings_for(files: dict[str, Any], name: str, **changes: Any) -> SFTSettings:
    plain: dict[str, Any] = {
        "steps": 3,
        "samples_per_step": 6,
        "name": name,
        "timeout_s": 30,
        "optimizer": FAST,
        "balance": ON,
    }
    return SFTSettings(**{**files, **plain, **changes})


def losses(settings: SFTSettings) -> list[float]:
    return [step["loss"] for step in steps_of(settings)]


def weights(settings: SFTSettings) -> dict[str, torch.Tensor]:
    model = AutoModelForImageTextToText.from_pretrained(settings.folder / "model", dtype=torch.float64)
    return dict(model.state_dict())


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
