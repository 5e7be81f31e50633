"""Settings from arguments and YAML files, as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.cli.settings_parser import parse_settings
from trimtab.errors import SettingsError
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings

NEEDED = ["model=m", "data=[a.jsonl]", "table=a.parquet"]


def parsed(*words: str) -> SFTSettings:
    return parse_settings(SFTSettings, [*NEEDED, *words], command="trimtab train sft")


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "run.yaml").write_text(text)
    return str(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("balance.mod=off", "unknown setting balance.mod; did you mean balance.mode?"),
        ("step=5", "unknown setting step; did you mean steps?"),
        ("lora.r=4", "unknown setting lora.r; did you mean lora.rank?"),
        ("frob=1", "unknown setting frob; --help lists all settings"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_one(word: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(word)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("word", "must"),
    [
        ("steps=1.5", "a whole number"),
        ("resume=maybe", "true or false"),
        ("optimizer.beta1=", "a number"),
        ("balance.mode=some", "one of off, observe, on"),
        ("max_tokens_per_micro_batch=x", "a whole number, or null"),
        ("lora.targets=[1", "a list, such as [a,b]"),
        ("lora=3", "written setting by setting, such as lora.rank=…"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_what_it_must_be(word: str, must: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(word)
    assert str(caught.value) == f"{word} must be {must}"


def test_a_word_that_sets_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="'stray' is no setting; write name=value, or see --help"):
        parsed("stray")


@pytest.mark.parametrize(
    "text", ["balance: off", "balance: {mode: off}", "balance:\n  mode: 'off'\n", "balance.mode: off"]
)
def test_off_in_a_file_is_the_word_off(tmp_path: Path, text: str) -> None:
    assert parsed("--config", written(tmp_path, text)).balance.mode == "off"


def test_later_arguments_win_over_the_file_and_the_file_over_earlier_ones(tmp_path: Path) -> None:
    file = written(tmp_path, "steps: 7\nlora:\n  rank: 4\n  targets: [q_proj]\nresume: true\nranks: null\n")
    settings = parsed("steps=3", f"--config={file}", "lora.rank=8")
    assert (settings.steps, settings.lora.rank, settings.lora.targets) == (7, 8, ("q_proj",))
    assert settings.resume
    assert settings.ranks is None


def test_a_runs_own_config_is_read_back(tmp_path: Path) -> None:
    from trimtab.training.run_folder import RunFolder

    settings = parsed("balance=off", "packing=best", "optimizer.learning_rate=3e-5", "name=a-1")
    RunFolder(tmp_path, first_step=0).write_settings(settings)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["balance"]["mode"] == "off"
    assert parse_settings(SFTSettings, ["--config", str(tmp_path / "config.yaml")], command="x") == settings


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert parsed("--config", written(tmp_path, "")) == parsed()


@pytest.mark.parametrize(("text", "said"), [("- a\n", "holds list, not settings"), ("a: [", "is no YAML")])
def test_a_file_without_settings_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parsed("--config", written(tmp_path, text))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"config=gone\.yaml: cannot be read"):
        parsed("--config", "gone.yaml")


def test_one_file_stands_for_a_list_of_one() -> None:
    assert parsed("data=b.jsonl").data == ("b.jsonl",)


@pytest.mark.parametrize(
    "word",
    [
        "steps=0",
        "seed=-1",
        "checkpoint_every=-1",
        "timeout_s=-1",
        "timeout_s=nan",
        "data=[]",
        "name=",
        "name=../../evil",
        "lora.rank=-1",
        "optimizer.learning_rate=-1",
        "optimizer.learning_rate=nan",
        "optimizer.max_skipped_steps=-3",
        "optimizer.beta2=1.5",
        "optimizer.max_grad_norm=0",
        "evaluation.samples_per_step=0",
        "loader.workers=0",
        "balance.mode=maybe",
        "steps=many",
    ],
)
def test_values_out_of_range_are_refused(word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(word)
    assert word.partition("=")[0].rpartition(".")[2] in str(caught.value)


def test_grpo_takes_the_same_forms(tmp_path: Path) -> None:
    file = written(tmp_path, "balance: off\nreward:\n  function: reward.py:score\n")
    settings: Any = parse_settings(GRPOSettings, [*NEEDED, "--config", file], command="trimtab train grpo")
    assert (settings.balance.mode, settings.reward.function) == ("off", "reward.py:score")
