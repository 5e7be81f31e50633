"""Signals a run hears, and gives back."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from trimtab.errors import SettingsError
from trimtab.training.grpo.run import train_grpo
from trimtab.training.grpo.settings import GRPOSettings, RewardSettings
from trimtab.training.settings import SFTSettings
from trimtab.training.sft import train

FILES: dict[str, Any] = {"model": Path("m"), "data": ("a.jsonl",), "table": Path("t.parquet")}
REWARD = RewardSettings(function="reward.py:score")


@pytest.mark.parametrize(
    ("built", "train", "settings"),
    [
        ("trimtab.training.sft.build_job", train, SFTSettings(**FILES)),
        ("trimtab.training.grpo.run.build_grpo_job", train_grpo, GRPOSettings(**FILES, reward=REWARD)),
    ],
)
def test_a_run_that_cannot_begin_leaves_the_handlers_as_they_were(built: str, train: Any, settings: Any) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    refused = mock.patch(built, side_effect=SettingsError("no such model"))
    with refused, pytest.raises(SettingsError, match="no such model"):
        train(settings, None)
    assert [signal.getsignal(number) for number in numbers] == before
