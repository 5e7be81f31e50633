"""Media of a scanned dataset is read from where the dataset lies now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.chat_tokenizer import chat_tokenizer
from tests.loader.media_cases import GEOMETRY

from trimtab.errors import DatasetError, MetadataError
from trimtab.families import family_for
from trimtab.loader.media_reader import open_media_reader
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import open_dataset
from trimtab.schema.table import MetadataTable
from trimtab.schema.table_file import read_table, write_table


def write_dataset(folder: Path, media: Path) -> Path:
    folder.mkdir()
    media.mkdir(exist_ok=True)
    Image.new("RGB", (56, 56), "red").save(media / "a.png")
    turns = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "Red."}]
    data = folder / "d.jsonl"
    data.write_text(json.dumps({"messages": turns, "images": ["a.png"]}) + "\n")
    return data


def scanned(data: Path, root: Path | None = None) -> MetadataTable:
    scanner = Scanner(tokenizer=chat_tokenizer(), family=family_for("qwen2_5_vl"), geometry=GEOMETRY)
    write_table(scanner.scan(open_dataset(data, root)).table, data.with_suffix(".parquet"))
    return read_table(data.with_suffix(".parquet"))


def source_of(table: MetadataTable, data: Path, root: Path | None = None) -> str:
    return open_media_reader(table, data, root).decode_task(0, 0, 0, 1).visual.source


def test_a_dataset_moved_as_a_whole_is_read_where_it_lies(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "old", tmp_path / "old")
    table = scanned(data)
    assert source_of(table, data) == str(tmp_path / "old" / "a.png")
    (tmp_path / "old").rename(tmp_path / "new")
    assert source_of(table, tmp_path / "new" / "d.jsonl") == str(tmp_path / "new" / "a.png")


def test_the_scans_root_holds_until_another_is_given(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "text", tmp_path / "media")
    table = scanned(data, tmp_path / "media")
    assert source_of(table, data) == str(tmp_path / "media" / "a.png")
    assert source_of(table, data, tmp_path / "elsewhere") == str(tmp_path / "elsewhere" / "a.png")


def test_other_dataset_files_are_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "old", tmp_path / "old")
    table = scanned(data)
    data.write_text(data.read_text().replace("Red", "Blue"))
    with pytest.raises(MetadataError, match=r"changed since the scan: d\.jsonl \(1 record, .*scan it again"):
        open_media_reader(table, data)
    data.unlink()
    with pytest.raises(DatasetError, match="no such file"):
        open_media_reader(table, data)
