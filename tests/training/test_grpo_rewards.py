"""Reward functions: single and batch, with state, and everything they may do wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.errors import SettingsError, TrainingError
from trimtab.training.grpo.reward_call import RewardInput
from trimtab.training.grpo.rewards import Rewarder
from trimtab.training.grpo.settings import RewardSettings

FUNCTIONS = """
import numpy as np
calls = 0

def exact(item):
    return item.reply == item.answer

def share(items):
    global calls
    calls += 1
    return np.array([len(item.reply) / calls for item in items])

def printing(item):
    print("a word on standard output")
    return 1

def raising(item):
    return {"a": 1.0}[item.reply]

def running(item):
    import subprocess
    return float(subprocess.run(["cat"], capture_output=False, text=True).returncode == 0)

def precise(item):
    from decimal import Decimal
    from fractions import Fraction
    return Decimal("0.5") if item.reply == "a" else Fraction(1, 4)

def yielding(items):
    for item in items:
        yield len(item.reply)

async def later(item):
    return 1.0

def endless(item):
    return 10 ** 5000

def enormous(item):
    return -1e308

def listed(item):
    return [1.0]

def odd(item):
    return lambda: 1.0

def nan(item):
    return float("nan") if item.reply == "b" else 1.0

def text(item):
    return "much"

def short(items):
    return [1.0]

def slow(item):
    import time
    if item.reply == "b":
        time.sleep(60)
    return 1.0

def dying(item):
    import os
    os._exit(3)

def state_dict():
    return {"calls": calls}

def load_state_dict(state):
    global calls
    calls = state["calls"]
"""


def replies(*texts: str) -> list[RewardInput]:
    return [
        RewardInput(sample_id=f"s{i}", prompt="?", reply=text, answer="a", finished=True, extras={})
        for i, text in enumerate(texts)
    ]


@contextmanager
def rewarder(folder: Path, name: str, *, batch: bool = False, timeout_s: float = 20.0) -> Iterator[Rewarder]:
    path = folder / "functions.py"
    path.write_text(FUNCTIONS)
    running = Rewarder(RewardSettings(function=f"{path}:{name}", batch=batch, timeout_s=timeout_s))
    try:
        yield running
    finally:
        running.close()


def test_a_single_function_scores_each_reply(tmp_path: Path) -> None:
    with rewarder(tmp_path, "exact") as scorer:
        assert scorer.score(replies("a", "b", "a")).tolist() == [1.0, 0.0, 1.0]
        assert scorer.score(replies()).tolist() == []


def test_a_batch_function_scores_the_step_and_keeps_its_state(tmp_path: Path) -> None:
    with rewarder(tmp_path, "share", batch=True) as scorer:
        assert scorer.score(replies("a", "bb")).tolist() == [1.0, 2.0]
        assert scorer.score(replies("a", "bb")).tolist() == [0.5, 1.0]
        state = scorer.state_dict()
    with rewarder(tmp_path, "share", batch=True) as scorer:
        scorer.load_state_dict(state)
        assert scorer.score(replies("a")).tolist() == pytest.approx([1 / 3])


def test_what_a_function_prints_does_no_harm(tmp_path: Path) -> None:
    with rewarder(tmp_path, "printing") as scorer:
        assert scorer.score(replies("a", "b")).tolist() == [1.0, 1.0]


def test_processes_a_function_starts_do_no_harm(tmp_path: Path) -> None:
    with rewarder(tmp_path, "running") as scorer:
        assert scorer.score(replies("a", "b")).tolist() == [1.0, 1.0]


def test_other_numbers_and_generators_are_taken(tmp_path: Path) -> None:
    with rewarder(tmp_path, "precise") as scorer:
        assert scorer.score(replies("a", "b")).tolist() == [0.5, 0.25]
    with rewarder(tmp_path, "yielding", batch=True) as scorer:
        assert scorer.score(replies("a", "bb")).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "batch", "said"),
    [
        ("later", False, "is asynchronous"),
        ("endless", False, "must be finite and within 1e+12"),
        ("enormous", False, "must be finite and within 1e+12"),
        ("listed", False, "must be a number, not of type list"),
        ("odd", False, "returned a value of type function"),
        ("odd", True, "returned a value of type function"),
        ("raising", False, "raised KeyError: 'b'"),
        ("raising", False, "sample s1"),
        ("nan", False, "returned nan for sample s1"),
        ("text", False, "returned 'much' for sample s0"),
        ("short", True, "returned 1 values for 2 replies"),
        ("exact", True, "raised AttributeError"),
        ("dying", False, "ended its process at sample s0"),
    ],
)
def test_a_wrong_function_ends_in_an_error_that_names_it(tmp_path: Path, name: str, batch: bool, said: str) -> None:
    with rewarder(tmp_path, name, batch=batch) as scorer, pytest.raises(TrainingError) as error:
        scorer.score(replies("a", "b"))
    assert f"functions.py:{name}" in str(error.value)
    assert said in str(error.value)


def test_a_slow_function_is_stopped(tmp_path: Path) -> None:
    with rewarder(tmp_path, "slow", timeout_s=1.0) as scorer:
        began = time.monotonic()
        with pytest.raises(TrainingError, match=r"longer than reward.timeout_s=1 s \(at sample s1\)"):
            scorer.score(replies("a", "b"))
        assert time.monotonic() - began < 5


def test_a_function_that_is_not_there_is_a_bad_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        Rewarder(RewardSettings(function=f"{tmp_path}/none.py:f"))
    with pytest.raises(SettingsError, match="has no attribute 'absent'"), rewarder(tmp_path, "absent"):
        pass
