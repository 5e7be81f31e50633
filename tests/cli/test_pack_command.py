"""``trimtab pack``: figures of a table's packs, bad input in one clear line, no torch."""

from __future__ import annotations

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

from trimtab.cli import pack
from trimtab.errors import InfeasibleError, MetadataError, SettingsError, UnknownModelError
from trimtab.families import FAMILIES
from trimtab.schema.metadata import SampleMetadata, Visual
from trimtab.schema.table import MetadataTable
from trimtab.schema.table_file import write_table

LOOSE = ("--tiles", "18", "--tokens", "6016")
MODEL = ("--model", "internvl-6b-20b")


@pytest.fixture
def table(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    columns = {
        "vision_tiles": rng.choice([1, 3, 4, 5], p=[0.2, 0.16, 0.02, 0.62], size=3000),
        "text_tokens": rng.integers(20, 400, 3000),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    pack.add_arguments(parser)
    return pack.run(parser.parse_args(arguments))


def packed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_the_figures(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = packed(capsys, table, *LOOSE, *MODEL)
    assert result["method"] == "best"
    assert result["samples"] == 3000
    assert result["lower_bound"] <= result["packs"] <= 1.01 * result["lower_bound"]
    assert result["pad_ratio"] == 0
    assert result["oversized"] == []
    assert result["unused_samples"] == 0
    assert result["seconds"] < 60
    assert result["dist_ratio"].keys() == {"8", "32"}
    for ratios in result["dist_ratio"].values():
        assert ratios.keys() == {"vision", "language", "cost"}
        assert all(0 <= ratio < 0.03 for ratio in ratios.values())


def test_before_and_after_are_compared(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = packed(capsys, table, *LOOSE, *MODEL)
    before, after = result["spread"]["before"], result["spread"]["after"]
    assert before.keys() == after.keys() == {"tiles", "tokens", "forward_ms", "activation_gib"}
    for name in ("tiles", "forward_ms", "activation_gib"):
        assert after[name]["sd"] / after[name]["mean"] < before[name]["sd"] / before[name]["mean"] / 2
    assert result["plain"]["pad_ratio"] > 0.1
    assert result["plain"]["dist_ratio"]["8"]["cost"] > 5 * result["dist_ratio"]["8"]["cost"]
    assert result["gain"]["8"]["pays"]


def test_cost_needs_a_model(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = packed(capsys, table, *LOOSE)
    assert {ratios["cost"] for ratios in result["dist_ratio"].values()} == {None}
    assert result["gain"]["8"]["unit"] == "tokens"


def test_isf_at_tight_caps_is_told_not_to_pay(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = packed(capsys, table, "--tiles", "9", "--tokens", "4096", "--method", "isf", *MODEL)
    assert result["dist_ratio"]["8"]["language"] > 0.2
    assert result["gain"]["8"]["says"].startswith("packing would not pay")


def test_the_window_is_a_choice(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    unmatched = packed(capsys, table, *LOOSE, "--window", "1")
    assert unmatched["dist_ratio"]["8"]["language"] > 5 * packed(capsys, table, *LOOSE)["dist_ratio"]["8"]["language"]
    assert unmatched["window"] == 1


def test_caps_are_chosen_from_the_data_where_none_is_given(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = packed(capsys, table, "--batch", "3", *MODEL)
    assert 3 <= result["samples"] / result["packs"] <= 4.1
    assert result["caps"]["tiles"] == int(result["caps"]["tiles"]) > 3 * 3
    assert result["gain"]["8"]["pays"]


def test_one_cap_alone_is_enough(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed(capsys, table, "--tokens", "6016")["caps"] == {"tiles": None, "tokens": 6016}


def test_oversized_samples_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"vision_tiles": [1, 30, 2, 0], "text_tokens": [10, 10, 10, 7000], "sample_id": ["a", "b", "c", "d"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    result = packed(capsys, str(tmp_path / "t.parquet"), *LOOSE)
    assert result["oversized"] == ["b", "d"]
    assert result["oversized_reasons"] == [
        "tiles=30 exceeds its cap of 18 and tokens=7690 exceeds its cap of 6016",
        "tokens=7000 exceeds its cap of 6016",
    ]
    assert result["unused_samples"] == 2
    assert result["packs"] == 1
    assert run(str(tmp_path / "t.parquet"), *LOOSE) == 0
    assert "d: tokens=7000 exceeds its cap of 6016" in " ".join(capsys.readouterr().out.split())


def test_a_table_no_pack_holds_any_of_is_refused(table: str) -> None:
    with pytest.raises(InfeasibleError, match=r"hold any of the 3000 samples; sample .*exceeds its cap of 10"):
        run(table, "--tokens", "10")


def test_the_gain_compares_the_same_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"vision_tiles": [1] * 100, "text_tokens": [500] * 99 + [100_000]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    result = packed(capsys, str(tmp_path / "t.parquet"), *LOOSE, "--dp", "8,64")
    assert result["gain"]["8"]["gain"] < 1.5
    assert result["spread"]["before"]["tokens"]["sd"] == 0
    assert result["gain"]["64"] is None
    assert result["plain"]["dist_ratio"]["64"] == {"vision": None, "language": None, "cost": None}
    assert run(str(tmp_path / "t.parquet"), *LOOSE) == 0
    assert "from 99 of 100 samples (1 left out)" in " ".join(capsys.readouterr().out.split())


def test_text_alone_has_no_cap_on_tiles_and_isf_no_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"vision_tiles": [0] * 64, "text_tokens": list(range(10, 74))}), tmp_path / "t.parquet")
    result = packed(capsys, str(tmp_path / "t.parquet"), "--dp", "8", "--method", "isf")
    assert (result["caps"]["tiles"], result["window"]) == (None, None)


def test_results_are_reproducible_from_the_seed(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    def figures(*arguments: str) -> dict[str, Any]:
        return packed(capsys, table, *LOOSE, *arguments) | {"seconds": 0}

    assert figures() == figures()
    assert figures() != figures("--seed", "1")


def test_the_table_for_people_fits_eighty_columns(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(table, *LOOSE, *MODEL) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "from 3,000 samples by 'best'" in shown
    assert "32 ranks: 1." in shown
    assert "…" not in shown


def test_a_table_made_for_another_model_is_refused(tmp_path: Path) -> None:
    geometry = next(family.defaults for family in FAMILIES if family.name == "qwen3_vl")
    image = Visual(kind="image", grid_t=1, grid_h=8, grid_w=8, source="a.png")
    sample = SampleMetadata(sample_id="a", text_tokens=5, loss_tokens=2, visuals=(image,))
    write_table(MetadataTable.from_samples([sample], geometry=geometry), tmp_path / "t.parquet")
    with pytest.raises(MetadataError, match=r"another model than internvl-6b-20b: patch_size 16 \(model: 14\)"):
        run(str(tmp_path / "t.parquet"), *LOOSE, *MODEL)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--tiles", "0"), SettingsError, "--tiles 0 must be at least 1"),
        (("--tokens", "-5"), SettingsError, "--tokens -5 must be at least 1"),
        (("--dp", "8,x"), SettingsError, "--dp '8,x' must be numbers from 1"),
        (("--dp", "0"), SettingsError, "--dp '0' must be numbers from 1"),
        (("--window", "0"), SettingsError, "window=0"),
        (("--batch", "0"), SettingsError, "--batch 0"),
        (("--seed", "-1"), SettingsError, "--seed -1"),
        (("--model", "gpt"), UnknownModelError, "'gpt' is not bundled"),
        (("--batch", "1000"), SettingsError, "3000 samples do not fill a step of 8 batches of 1000"),
    ],
)
def test_bad_arguments_are_refused(
    table: str, arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(table, *arguments)


def test_a_missing_table_is_refused() -> None:
    with pytest.raises(MetadataError, match=r"none\.parquet: no such file"):
        run("none.parquet", *LOOSE)


def test_no_torch_is_loaded(table: str) -> None:
    script = (
        "import argparse, sys\n"
        "from trimtab.cli import pack\n"
        "parser = argparse.ArgumentParser(); pack.add_arguments(parser)\n"
        "pack.run(parser.parse_args(sys.argv[1:]))\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules), 'heavy imports'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, table, *LOOSE, "--json"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 3000
