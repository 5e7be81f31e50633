"""verl's signature and promises, and partitions no worse than its own."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.own_environment import python_with

from trimtab.errors import SettingsError
from trimtab.integrations.verl import get_seqlen_balanced_partitions

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests" / "goldens" / "verl_partitions.json").read_text())
VERL = ("verl==0.9.1", "tensordict", "pyvers", "cloudpickle", "omegaconf", "antlr4-python3-runtime", "codetiming")
TOLERANCE = 1.001  # of the largest sum; our search stops within 0.08 % of the bound


def sums(lengths: list[int], partitions: list[list[int]]) -> list[int]:
    return sorted(sum(lengths[index] for index in each) for each in partitions)


def case_name(case: Any) -> str:
    return f"{len(case['lengths'])} items, {case['partitions']} parts, equal_size={case['equal_size']}"


@pytest.mark.parametrize("case", RECORDED["cases"], ids=case_name)
def test_no_worse_than_verls_recorded_results(case: Any) -> None:
    found = get_seqlen_balanced_partitions(case["lengths"], case["partitions"], case["equal_size"])
    assert sums(case["lengths"], found)[-1] <= case["sums"][-1] * TOLERANCE


def test_the_signature_is_verls() -> None:
    assert list(inspect.signature(get_seqlen_balanced_partitions).parameters) == [
        "seqlen_list",
        "k_partitions",
        "equal_size",
    ]


@given(st.integers(1, 8), st.integers(1, 6), st.booleans(), st.data())
def test_every_item_once_and_no_part_empty(parts: int, each: int, equal: bool, data: st.DataObject) -> None:
    count = parts * each if equal else parts + each - 1
    lengths = data.draw(st.lists(st.integers(0, 40_000), min_size=count, max_size=count))
    found = get_seqlen_balanced_partitions(lengths, parts, equal)
    assert sorted(index for part in found for index in part) == list(range(count))
    assert all(part == sorted(part) and part for part in found)
    assert not equal or {len(part) for part in found} == {each}


def test_workloads_may_be_fractions() -> None:
    assert get_seqlen_balanced_partitions([0.1, 0.2, 0.3], 2, False) in ([[0, 1], [2]], [[2], [0, 1]])


@pytest.mark.parametrize(
    ("lengths", "parts", "equal", "text"),
    [
        ([1], 2, False, "cannot fill"),
        ([1, 2, 3], 2, True, "do not divide"),
        ([1.0, float("nan")], 2, False, "item 1"),
        ([1, -2], 2, False, "item 1"),
    ],
)
def test_what_verl_asserts_is_a_named_error(lengths: Any, parts: int, equal: bool, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        get_seqlen_balanced_partitions(lengths, parts, equal)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_worse_than_verl_in_its_own_environment(tmp_path: Path) -> None:
    program = (
        "import json, sys; from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions as f; "
        "print(json.dumps([f(c['lengths'], c['partitions'], c['equal_size']) for c in json.load(sys.stdin)]))"
    )
    python = python_with(tmp_path / "verl", *VERL)
    done = subprocess.run(
        [python, "-c", program], input=json.dumps(RECORDED["cases"]), capture_output=True, text=True, check=True
    )
    for case, theirs in zip(RECORDED["cases"], json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert sums(case["lengths"], theirs) == case["sums"]
