"""Tables that no scan wrote end in one line that names the file."""

from __future__ import annotations

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
        ({}, {"loss_weight": ["heavy", "light"]}, "scan the dataset again"),
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


def test_billions_of_tiles_are_refused_before_they_are_laid_out(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("text_tokens,vision_tiles\n5,1\n5,3000000000\n")
    with pytest.raises(MetadataError, match="row 1 has 3000000000"):
        read_table(tmp_path / "flat.csv")


def test_the_suffix_of_a_text_table_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "FLAT.CSV").write_text("text_tokens,vision_tiles\n5,1\n")
    assert len(read_table(tmp_path / "FLAT.CSV")) == 1
