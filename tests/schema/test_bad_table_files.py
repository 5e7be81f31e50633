"""Tables that no scan wrote end in one line that names the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.errors import MetadataError
from trimtab.schema.table_file import read_table

VISUAL = {"kind": "image", "grid_t": 1, "grid_h": 4, "grid_w": 4, "source": "a.png"}


def written(tmp_path: Path, metadata: dict[str, str] | None = None, **changes: list[Any]) -> Path:
    columns: dict[str, list[Any]] = {
        "sample_id": ["a", "b"],
        "text_tokens": [5, 6],
        "loss_tokens": [1, 1],
        "visuals": [[VISUAL], []],
    }
    table = pa.table({**columns, **changes}).replace_schema_metadata(metadata or {})
    pq.write_table(table, tmp_path / "bad.parquet")
    return tmp_path / "bad.parquet"


def test_the_table_these_are_made_from_is_good(tmp_path: Path) -> None:
    assert len(read_table(written(tmp_path))) == 2


@pytest.mark.parametrize(
    ("metadata", "columns", "said"),
    [
        ({"trimtab.files": "{"}, {}, "scan the dataset again"),
        ({"trimtab.merge_size": "x"}, {}, "scan the dataset again"),
        ({}, {"loss_weight": ["heavy", "light"]}, "column loss_weight must hold numbers, and is of string"),
        ({}, {"sample_id": [["a"], ["b"]]}, "column sample_id must hold text, and is of list<"),
        ({}, {"visuals": ["a", "b"]}, "leave it out and give vision_tiles, or scan the dataset"),
        ({"trimtab.merge_size": "2"}, {"visuals": ["a", "b"]}, "not a list of structs; scan the dataset again"),
        ({}, {"visuals": [[{**VISUAL, "width": "wide"}], []]}, "column visuals.width must hold whole numbers"),
        ({}, {"text_tokens": [5, 5_000_000_000]}, "text_tokens holds 5000000000 in row 1"),
        ({}, {"visuals": [[{**VISUAL, "grid_h": 2**31 - 2}], []]}, "visuals.grid_h holds 2147483646 in row 0"),
    ],
)
def test_what_no_scan_writes_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, str], columns: dict[str, list[Any]], said: str
) -> None:
    with pytest.raises(MetadataError) as caught:
        read_table(written(tmp_path, metadata, **columns))
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text,tiles\n3,1\n", "columns text_tokens and vision_tiles are missing among 'text', 'tiles': a table that"),
        ("text_tokens,tiles\n3,1\n", "column vision_tiles is missing among 'text_tokens', 'tiles'"),
        ("text_tokens;vision_tiles\n3;1\n", "'text_tokens;vision_tiles': its cells are separated by ';'; use commas"),
        ("text_tokens\tvision_tiles\n3\t1\n", "its cells are separated by '\\t'; use commas"),
        ("Text_Tokens,vision_tiles\n3,1\n", "found column 'Text_Tokens', meant text_tokens? name it so"),
        ("text_tokens,vision tiles\n3,1\n", "found column 'vision tiles', meant vision_tiles?"),
        ("text_tokens,vision_tiles,Loss_Tokens\n3,1,2\n", "found column 'Loss_Tokens', meant loss_tokens?"),
        ("text_tokens,text_tokens,vision_tiles\n3,3,1\n", "column text_tokens stands 2 times; leave one"),
        ("text_tokens,vision_tiles\n-3,1\n", "text_tokens=-3 is negative; correct it"),
        ("text_tokens,vision_tiles\n", "the table has no sample; give one with some rows"),
        ("text_tokens,vision_tiles\n0,0\n0,0\n", "no sample has a token or a visual"),
        ("text_tokens,vision_tiles,loss_weight\n3,1,much\n", "column loss_weight must hold numbers"),
    ],
)
def test_a_table_of_ones_own_is_told_what_to_correct(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(MetadataError) as caught:
        read_table(tmp_path / "own.csv")
    assert said in str(caught.value)
    assert "scan the dataset again" not in str(caught.value)
    assert "no scan writes" not in str(caught.value)


@pytest.mark.parametrize("name", ["text_tokens", "vision_tiles"])
def test_a_column_of_lists_is_named(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"text_tokens": [3], "vision_tiles": [1], name: [[3]]}), tmp_path / "own.parquet")
    with pytest.raises(MetadataError, match=rf"column {name} must hold whole numbers, and is of list<.*; correct it"):
        read_table(tmp_path / "own.parquet")


def test_a_column_twice_in_parquet_is_named(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays(
        [pa.array([3]), pa.array([4]), pa.array([1])], ["text_tokens", "text_tokens", "vision_tiles"]
    )
    pq.write_table(twice, tmp_path / "own.parquet")
    with pytest.raises(MetadataError, match=r"column text_tokens stands 2 times; leave one"):
        read_table(tmp_path / "own.parquet")


def test_billions_of_tiles_are_refused_before_they_are_laid_out(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("text_tokens,vision_tiles\n5,1\n5,3000000000\n")
    with pytest.raises(MetadataError, match="row 1 has 3000000000"):
        read_table(tmp_path / "flat.csv")


def test_the_suffix_of_a_text_table_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "FLAT.CSV").write_text("text_tokens,vision_tiles\n5,1\n")
    assert len(read_table(tmp_path / "FLAT.CSV")) == 1


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("c,-5,1", r"flat.csv, line 5: sample 'c' \(row 2\): text_tokens=-5 is negative; .* \(rows count from 0\)"),
        ("c,5,-1", r"line 5: row 2: vision_tiles=-1 is negative"),
        ("c,1x,1", r"line 5: column text_tokens must hold whole numbers, .*'1x'.*; correct it$"),
        ("c,,1", r"line 5: column text_tokens has no value in row 2"),
        ("a,5,1", r"line 5: sample id 'a' is repeated in row 2; give every sample its own"),
        ("c,0,0\nd,0,0", r"line 5: sample 'c' \(row 2\) has no token and no visual \(2 such in all\); leave it out"),
        ('"c\nd",3,0\n\ne,-2,0', r"line 8: sample 'e' \(row 3\): text_tokens=-2"),
    ],
)
def test_an_error_in_a_text_table_names_its_line_and_the_samples_own_id(rows: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text(f"id,text_tokens,vision_tiles\na,5,1\n\nb,3,0\n{rows}\n")
    with pytest.raises(MetadataError, match=told):
        read_table(tmp_path / "flat.csv")


def test_a_column_of_another_kind_is_no_single_rows_fault(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("text_tokens,vision_tiles\nx,1\ny,1\n")
    with pytest.raises(MetadataError, match=r"flat\.csv: column text_tokens must hold whole numbers") as raised:
        read_table(tmp_path / "flat.csv")
    assert raised.value.row is None
    assert pickle.loads(pickle.dumps(MetadataError("bad", row=3))).row == 3


def test_samples_are_called_by_sample_id_or_id_or_row(tmp_path: Path) -> None:
    for columns, names in (("sample_id,id", ["s", "t"]), ("other,id", ["i", "j"]), ("other,one", ["0", "1"])):
        (tmp_path / "flat.csv").write_text(f"{columns},text_tokens,vision_tiles\ns,i,5,1\nt,j,5,1\n")
        assert read_table(tmp_path / "flat.csv").sample_ids.to_pylist() == names
