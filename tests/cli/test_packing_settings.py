"""``packing=best`` and its dotted settings on the command line of ``trimtab train sft``."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.main import main
from trimtab.cli.settings_parser import parse_settings
from trimtab.loader.pack_settings import PackingSettings
from trimtab.training.settings import SFTSettings

NEEDED = ["model=m", "data=[a.jsonl]", "table=t.parquet"]


def packing(*words: str) -> PackingSettings:
    return parse_settings(SFTSettings, [*NEEDED, *words], command="trimtab train sft").packing


@pytest.mark.parametrize("words", [["packing=best"], ["--packing=best"], ["packing.method=best"]])
def test_the_method_may_stand_for_all_of_packing(words: list[str]) -> None:
    assert packing(*words) == PackingSettings(method="best")


def test_other_settings_are_dotted() -> None:
    assert packing("packing=isf", "packing.tokens=900", "packing.window=16") == PackingSettings(
        method="isf", tokens=900, window=16
    )
    assert packing("packing={method: best, patches: 70}") == PackingSettings(method="best", patches=70)


def test_packing_is_off_unless_asked_for() -> None:
    assert packing().method == "off"


def test_words_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("packing:\n  method: isf\n  tokens: 500\n")
    assert packing("--config", str(config), "packing=best") == PackingSettings(method="best", tokens=500)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["packing=tight"], "packing.method"),
        (["packing=best", "packing.tokens=0"], "packing.tokens=0 must be at least 1"),
        (["packing=best", "max_tokens_per_micro_batch=99"], "set packing.tokens instead"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sft", *NEEDED, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
