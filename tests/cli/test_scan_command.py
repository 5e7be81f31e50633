"""``trimtab scan`` from the command line."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from chat_tokenizer import chat_tokenizer
from trimtab.cli.main import main
from trimtab.families import family_for
from trimtab.schema.table_file import read_table


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    chat_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 50_000}))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Image.new("RGB", (300, 300)).save(tmp_path / "a.png")
    turns = [{"role": "user", "content": "<image>Which?"}, {"role": "assistant", "content": "Red."}]
    lines = [{"messages": turns, "images": ["a.png"]}, {"messages": turns, "images": ["gone.png"]}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "d.jsonl"


def test_scan_writes_the_table_and_tells_what_was_bad(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = data.parent / "meta.parquet"
    assert main(["scan", str(data), "--model", str(checkpoint), "--out", str(out), "--on-bad-sample", "skip"]) == 0
    printed = capsys.readouterr().out
    assert "1 sample in" in printed
    assert "1 bad sample left out" in printed
    assert "gone.png" in printed
    table = read_table(out)
    assert len(table) == 1
    assert table.geometry is not None
    assert table.geometry.image_max_pixels == 50_000
    assert table.geometry.family == "qwen2_5_vl"
    assert table.grid_thw.tolist() == [[1, 14, 14]]


def test_a_terminal_that_does_not_know_a_character_is_told_its_code(
    data: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.write_text(data.read_text().replace("gone.png", "\\u4e2d.png"))
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    words = ["--model", str(checkpoint), "--out", str(data.parent / "meta.parquet"), "--on-bad-sample", "skip"]
    assert main(["scan", str(data), *words]) == 0
    terminal.seek(0)
    assert "\\u4e2d.png: no such file" in terminal.read()


def test_the_table_may_not_overwrite_the_dataset(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = data.read_bytes()
    assert main(["scan", str(data), "--model", str(checkpoint), "--out", str(data.parent / "." / data.name)]) == 2
    assert "is the dataset itself" in capsys.readouterr().err
    assert data.read_bytes() == before


def test_json_is_one_object_and_nothing_else(data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data.parent / "meta.parquet"
    words = ["scan", str(data), "--model", str(checkpoint), "--out", str(out), "--on-bad-sample", "skip", "--json"]
    assert main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["samples"], summary["images"], summary["videos"]) == (1, 1, 0)
    assert summary["visual_tokens"] == 49
    assert summary["bad_samples"][0]["where"].endswith("d.jsonl:2")


def test_limits_and_a_family_name_stand_in_for_a_checkpoint(data: Path, checkpoint: Path) -> None:
    out = data.parent / "meta.parquet"
    words = ["scan", str(data), "--model", "qwen3_vl", "--tokenizer", str(checkpoint), "--out", str(out)]
    assert main([*words, "--on-bad-sample", "skip", "--max-pixels", "70000", "--fps", "1"]) == 0
    geometry = read_table(out).geometry
    assert geometry is not None
    assert set(geometry.differences(family_for("qwen3_vl").defaults)) == {"image_max_pixels", "video_fps"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "gone.png: no such file"),
        ({"--model": "llama"}, "--model llama: neither a folder nor a known family (qwen2_vl, qwen2_5_vl, qwen3_vl)"),
        ({"--model": "qwen3_vl"}, "no tokenizer: qwen3_vl is not a folder; give --tokenizer FOLDER"),
        ({"--tokenizer": "."}, "holds no readable tokenizer"),
        ({"--workers": "0"}, "--workers 0 must be at least 1"),
        ({"--max-pixels": "10"}, "image_min_pixels=3136 and image_max_pixels=10"),
        ({"--root": "gone"}, "--root gone: no such folder; give the folder that relative media paths start from"),
        ({"--root": "a.png"}, "--root a.png: is not a folder"),
        ({"--out": "\udcff.parquet"}, "--out \\udcff.parquet: is no UTF-8"),
        ({"--out": "/proc/nowhere/meta.parquet", "--on-bad-sample": "skip"}, "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    data: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(data.parent)
    options = {"--model": str(checkpoint), "--out": "meta.parquet"} | changes
    assert main(["scan", str(data), *(word for option in options.items() for word in option)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("trimtab: ")
    assert message in last
    assert not (data.parent / "meta.parquet").exists()
