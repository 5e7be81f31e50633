"""``trimtab plan``: one row a strategy, bad input in one clear line, no torch."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.cli import plan
from trimtab.errors import MetadataError, SettingsError, UnknownModelError
from trimtab.planning.strategies import STRATEGIES


def flat_table(path: Path, **columns: list[Any]) -> str:
    rng = np.random.default_rng(0)
    default = {"text_tokens": rng.integers(20, 4000, 100), "vision_tiles": rng.integers(0, 6, 100)}
    pq.write_table(pa.table({**default, **columns}), path)
    return str(path)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return plan.run(parser.parse_args(arguments))


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(*arguments, "--json") == code
    return json.loads(capsys.readouterr().out)


COMMON = ("--ranks", "4", "--batch-size", "32", "--model", "internvl-6b-20b")


def test_json_has_a_row_for_every_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = planned(capsys, flat_table(tmp_path / "t.parquet"), *COMMON)
    head = {key: result[key] for key in ("ranks", "batch_size", "batches", "model", "sync")}
    assert head == {"ranks": 4, "batch_size": 32, "batches": 4, "model": "internvl-6b-20b", "sync": "layer"}
    assert [row["name"] for row in result["strategies"]] == list(STRATEGIES)
    rows = {row["name"]: row for row in result["strategies"]}
    assert "needs a multiple of 8 ranks, there are 4" in rows.pop("uniform-8")["infeasible"]
    for row in rows.values():
        assert isinstance(row["all_to_all_bytes"], int)
        assert row["planning_ms"].keys() == {"median", "p95"}
        for ratio in ("step_ratio", "bound_ratio", "attention_ratio", "vision_ratio", "token_ratio"):
            assert 1 <= row[ratio]["mean"] <= row[ratio]["max"]


def test_ours_is_closest_to_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = planned(capsys, flat_table(tmp_path / "t.parquet"), *COMMON)
    whole = [row for row in result["strategies"] if row["name"] == "adaptive" or not STRATEGIES[row["name"]].shards]
    steps = {row["name"]: row["step_ratio"]["mean"] for row in whole}
    assert steps["adaptive"] <= steps["whole-sample"] * 1.001  # the exchange of embeddings is added after planning
    ratios = {row["name"]: row["bound_ratio"]["mean"] for row in whole if row["name"] != "adaptive"}
    assert min(ratios, key=lambda name: ratios[name]) == "whole-sample"
    assert ratios["as-is"] > 1.05


def test_chosen_strategies_and_sync(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "t.parquet")
    result = planned(capsys, table, *COMMON, "--sync", "step", "--strategy", "whole-sample", "as-is")
    assert result["sync"] == "step"
    assert [row["name"] for row in result["strategies"]] == ["whole-sample", "as-is"]


def test_a_last_short_batch_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "t.parquet", text_tokens=[500] * 9, vision_tiles=[0] * 9)
    result = planned(capsys, table, "--ranks", "4", "--batch-size", "8", "--model", "internvl-6b-20b")
    assert result["batches"] == 2
    assert result["strategies"][0]["step_ratio"]["max"] == 4.0  # one sample on four ranks


def test_a_strategy_that_cannot_fit_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "t.parquet")
    result = planned(capsys, table, *COMMON, "--micro-batch-tokens", "1000", code=1)  # no strategy fits
    assert all("degree of" in row["infeasible"] or "multiple" in row["infeasible"] for row in result["strategies"])


def test_sharding_fits_what_whole_samples_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "t.parquet", text_tokens=[9000, *[500] * 31], vision_tiles=[0] * 32)
    result = planned(capsys, table, *COMMON, "--micro-batch-tokens", "4000")
    rows = {row["name"]: row for row in result["strategies"]}
    assert "degree of 4 is the smallest that fits (balance.max_degree=4;" in rows["whole-sample"]["infeasible"]
    assert rows["adaptive"]["step_ratio"]["max"] <= rows["uniform-4"]["step_ratio"]["max"] < 2


@pytest.mark.slow
def test_the_attention_ratio_can_be_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    demo = ("--demo", "image-heavy", "--strategy", "adaptive")
    by_time, by_attention = planned(capsys, *demo), planned(capsys, *demo, "--objective", "attention")
    found = [result["strategies"][0]["attention_ratio"]["mean"] for result in (by_time, by_attention)]
    assert 1 <= found[1] <= 1.02 < found[0]


def test_the_floor_is_that_of_the_largest_degree_the_model_allows(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 28 heads and 4 KV heads 8 is no legal degree, and on two ranks 4 is none."""
    demo = ("--demo", "image-heavy", "--model", "qwen2.5-vl-7b", "--strategy", "adaptive", "uniform-2")
    floors = {}
    for ranks, degree in ((16, 4), (16, 8), (2, 2), (2, 8)):
        asked = ("--ranks", str(ranks), "--batch-size", "32", "--max-degree", str(degree))
        rows = planned(capsys, *demo, *asked)["strategies"]
        for row in rows:
            assert row["attention_floor"]["mean"] <= row["attention_ratio"]["mean"] * 1.001, row["name"]
        floors[ranks, degree] = rows[0]["attention_floor"]["mean"]
    assert floors[16, 8] == floors[16, 4] > 1
    assert floors[2, 8] == floors[2, 2] == rows[1]["attention_floor"]["mean"]


def test_people_see_the_floor_too(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--demo", "image-heavy", "--ranks", "16", "--batch-size", "32", "--strategy", "uniform-2", "--explain")
    floor = planned(capsys, *asked)["strategies"][0]["attention_floor"]["mean"]
    assert floor > 1.1
    assert run(*asked) == 0
    shown = capsys.readouterr()
    assert f"{floor:.3f}" in shown.out
    assert "no plan at degrees up to 2 is below" in shown.err


def test_micro_batches_are_cut_for_every_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = planned(capsys, flat_table(tmp_path / "t.parquet"), *COMMON, "--micro-batch-tokens", "8000")
    assert [row["name"] for row in result["strategies"] if "infeasible" in row] == ["uniform-8"]  # on four ranks


def test_a_named_cluster_says_what_fits_with_and_without_recomputation(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--demo", "--strategy", "as-is", "--cluster", "h100", "--model", "qwen2.5-vl-7b")
    result = planned(capsys, *words)
    fits = result["tokens_that_fit"]
    assert fits == {"recompute": 72_355, "no_recompute": 5_638, "dtype": "bfloat16"}
    assert result["max_tokens_per_micro_batch"] == fits["recompute"]
    told = "(a device holds 72,355 with recompute=true, 5,638 without; dtype=bfloat16); means over batches"
    assert run(*words) == 0
    assert f"micro-batches of at most 72,355 tokens {told}" in capsys.readouterr().out
    assert run(*words, "--micro-batch-tokens", "72000") == 0
    assert f"micro-batches of at most 72,000 tokens {told}" in capsys.readouterr().out


def test_without_a_named_cluster_no_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "--demo", "--strategy", "as-is")["tokens_that_fit"] is None
    assert run("--demo", "--strategy", "as-is") == 0
    assert "a device holds" not in capsys.readouterr().out


def test_a_model_too_large_for_the_named_cluster_is_a_row_of_every_strategy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = flat_table(tmp_path / "t.parquet")
    large = ("--ranks", "2", "--batch-size", "32", "--model", "internvl-6b-20b", "--cluster", "h800")
    rows = planned(capsys, table, *large, code=1)["strategies"]
    said = "internvl-6b-20b, fully sharded over 2 ranks, leaves no room on devices of 80 GB"
    assert [row["name"] for row in rows if row["infeasible"].startswith(said)] == list(STRATEGIES)


def test_fitted_coefficients_replace_the_language_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coefficients = tmp_path / "cost.json"
    coefficients.write_text(json.dumps({"a": 0.0, "b": 0.0, "c": 1e9}))
    result = planned(capsys, flat_table(tmp_path / "t.parquet"), *COMMON, "--cost", str(coefficients))
    by_name = {row["name"]: row for row in result["strategies"]}
    assert by_name["equal-count"]["step_ratio"]["mean"] < 1.1  # all that counts now is the number of samples


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": 1, "b": 2}', "cost coefficient c must be a number, found null"),
        ('{"a": 1, "b": 2, "c": "x"}', 'cost coefficient c must be a number, found "x"'),
        ("[1, 2]", "must be an object with a, b and c, found list"),
        ("{", "Expecting"),
    ],
)
def test_bad_coefficients_are_named(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=said):
        run("--demo", "--cost", str(path))


def test_a_strategy_given_twice_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--demo", "--strategy", "as-is", "as-is", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["strategies"]) == 1


def test_a_checkpoint_folder_names_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {
        "model_type": "qwen2_5_vl",
        "text_config": {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 300,
        },
        "vision_config": {"hidden_size": 32, "depth": 2},
    }
    (folder / "config.json").write_text(json.dumps(config))
    arguments = (flat_table(tmp_path / "t.parquet"), "--ranks", "4", "--batch-size", "32", "--model", str(folder))
    assert planned(capsys, *arguments)["model"] == "my-model"


def test_the_table_for_people_fits_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(flat_table(tmp_path / "t.parquet"), *COMMON, "--explain") == 0
    shown = capsys.readouterr()
    assert all(name in shown.out for name in STRATEGIES)
    assert "…" not in shown.out
    assert "whole-sample, first batch" in shown.err


def test_the_demo_needs_no_table_and_no_torch() -> None:
    script = (
        "import argparse, sys\n"
        "from trimtab.cli import plan\n"
        "parser = argparse.ArgumentParser(); plan.add_arguments(parser)\n"
        "plan.run(parser.parse_args(['--demo', '--json']))\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules), 'heavy imports'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["strategies"]}
    assert rows["whole-sample"]["step_ratio"]["mean"] < 1.05 < rows["as-is"]["step_ratio"]["mean"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text_tokens": [5, -3], "vision_tiles": [0, 0]}, r"-3.*negative|negative.*-3"),
        ({"text_tokens": [5.0, float("nan")], "vision_tiles": [0, 0]}, r"text_tokens must hold whole numbers"),
        ({"text_tokens": [5, None], "vision_tiles": [0, 0]}, r"text_tokens has no value in row 1"),
        ({"text_tokens": pa.array([], pa.int32()), "vision_tiles": pa.array([], pa.int32())}, r"no sample"),
    ],
)
def test_bad_tables_are_refused_in_one_line(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        run(flat_table(tmp_path / "t.parquet", **columns), *COMMON)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"vision_tiles": [1]}), path)
    with pytest.raises(MetadataError, match="text_tokens is missing"):
        run(str(path), *COMMON)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), SettingsError, r"give a metadata table, or --demo"),
        (("t", "--demo"), SettingsError, r"leave one out"),
        (("t", "--ranks", "4"), SettingsError, r"--batch-size is missing"),
        (("--demo", "--ranks", "-4"), SettingsError, r"--ranks -4 must be at least 1"),
        (("--demo", "--ranks", "1000000000"), SettingsError, r"--ranks 1,000,000,000 must be at most 65,536; lower it"),
        (
            ("--demo", "--batch-size", "1000000000"),
            SettingsError,
            r"--batch-size 1,000,000,000 must be at most 262,144",
        ),
        (("--demo", "--strategy", "best"), SettingsError, r"'best' is unknown; choose one of as-is"),
        (("--demo", "--model", "gpt"), UnknownModelError, r"'gpt' is not bundled"),
        (("--demo", "--cluster", "tpu"), SettingsError, r"'tpu': neither a file nor"),
        (("--demo", "--cost", "none.json"), SettingsError, r"none.json: no such file"),
        (("--demo", "--micro-batch-tokens", "0"), SettingsError, r"max_tokens_per_micro_batch=0"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(*arguments)


@pytest.mark.parametrize("asked", [(), ("--micro-batch-tokens", "20000")])
def test_a_sample_no_device_holds_is_told_with_what_devices_hold(
    asked: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With more ranks a device keeps less of the state: three suffice, where the cap of two would ask for 28."""
    table = flat_table(tmp_path / "t.parquet", text_tokens=[31_310, *[500] * 7], vision_tiles=[0] * 8)
    words = (table, "--model", "qwen2.5-vl-7b", "--batch-size", "8", "--cluster", "h100", *asked)
    (row,) = planned(capsys, *words, "--ranks", "2", "--strategy", "adaptive", code=1)["strategies"]
    assert "31310 tokens at the largest degree, 2, exceed the 5121 that a device of 80 GB holds" in row["infeasible"]
    assert "beside the model's state sharded over 2 ranks; leave the sample out, use 3 ranks" in row["infeasible"]
    assert "max_tokens_per_micro_batch" not in row["infeasible"]
    assert planned(capsys, *words, "--ranks", "3", "--strategy", "adaptive")["strategies"][0]["step_ratio"]
