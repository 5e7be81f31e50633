"""Metadata tables survive the disk, become batches, and are refused with one clear line where they are wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.errors import MetadataError, SettingsError
from trimtab.families import family_for
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.schema.table import DatasetFile, MetadataTable
from trimtab.schema.table_file import read_table, write_table

GEOMETRY = family_for("qwen2_5_vl").defaults
FILES = (DatasetFile("a.jsonl", 10, 2, "00"), DatasetFile("b.parquet", 20, 9, "ff"))
IMAGE = Visual(
    kind="image", grid_t=1, grid_h=4, grid_w=6, source="a.png", width=60, height=80, frames=1, token_offset=3
)
VIDEO = Visual(kind="video", grid_t=5, grid_h=8, grid_w=2, source="b.mp4", frames=40, seconds=1.6)
SAMPLES = [
    SampleMetadata(sample_id="x", text_tokens=12, loss_tokens=5, visuals=(IMAGE, VIDEO), loss_weight=0.5),
    SampleMetadata(sample_id="y", text_tokens=7, loss_tokens=0),
    SampleMetadata(sample_id="z", text_tokens=1, loss_tokens=1, visuals=(VIDEO,)),
]


def table() -> MetadataTable:
    return MetadataTable.from_samples(SAMPLES, geometry=GEOMETRY, files=FILES, locations=[(0, 0), (0, 1), (1, 8)])


def test_a_table_gives_back_its_samples() -> None:
    assert [table().sample(row) for row in range(3)] == SAMPLES


def test_a_table_survives_the_disk(tmp_path: Path) -> None:
    write_table(table(), tmp_path / "meta.parquet")
    read = read_table(tmp_path / "meta.parquet")
    assert [read.sample(row) for row in range(3)] == SAMPLES
    assert read.dataset_index.tolist() == [0, 0, 1]
    assert read.dataset_row.tolist() == [0, 1, 8]
    assert (read.geometry, read.files, read.merge_size) == (GEOMETRY, FILES, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["meta.parquet"]


def test_the_file_has_the_documented_columns(tmp_path: Path) -> None:
    write_table(table(), tmp_path / "meta.parquet")
    schema = pq.read_schema(tmp_path / "meta.parquet")
    assert schema.field("sample_id").type == pa.string()
    assert schema.field("text_tokens").type == schema.field("loss_tokens").type == pa.int32()
    fields = [field.name for field in schema.field("visuals").type.value_type]
    assert fields[:5] == ["kind", "grid_t", "grid_h", "grid_w", "source"]
    assert schema.metadata[b"trimtab.family"] == b'"qwen2_5_vl"'
    assert schema.metadata[b"trimtab.patch_size"] == b"14"


def test_a_batch_equals_the_batch_of_its_samples() -> None:
    for rows in ([0, 1, 2], [2, 0], [1]):
        batch, expected = table().batch(rows), BatchMetadata.from_samples([SAMPLES[row] for row in rows], 2)
        assert batch.sample_ids == expected.sample_ids
        for name in ("text_tokens", "loss_tokens", "loss_weight", "visual_offsets", "grid_thw", "is_video"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
    assert len(table().batch()) == 3


def test_a_row_given_twice_shares_its_visuals_keys() -> None:
    assert table().batch([2, 0, 2]).visual_keys.tolist() == [2, 0, 1, 2]


def test_another_geometry_is_refused_with_the_differing_fields() -> None:
    table().check_geometry(GEOMETRY)
    with pytest.raises(MetadataError, match=r"another model or limits: video_fps 2\.0 \(model: 1\.0\); scan"):
        table().check_geometry(replace(GEOMETRY, video_fps=1.0))
    with pytest.raises(MetadataError, match="patch_size 14"):
        table().check_geometry(family_for("qwen3_vl").defaults)


def test_a_table_that_names_no_geometry_is_taken_for_the_model() -> None:
    plain = MetadataTable.from_samples(SAMPLES)
    plain.check_geometry(family_for("qwen3_vl").defaults)
    with pytest.raises(MetadataError, match="merge size is 2, the model's is 4"):
        plain.check_geometry(replace(GEOMETRY, merge_size=4))


def test_changed_dataset_files_are_refused() -> None:
    table().check_files(FILES)
    changed = replace(FILES[1], digest="fe")
    with pytest.raises(MetadataError, match=r"dataset file changed since the scan: .*b\.parquet.*ff.*fe"):
        table().check_files([FILES[0], changed])
    with pytest.raises(MetadataError, match="made from 2 dataset files, given 1; give"):
        table().check_files(FILES[:1])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"text_tokens": -1}, r"sample 'y' \(row 1\): text_tokens=-1 is negative"),
        ({"loss_tokens": -3}, "loss_tokens=-3 is negative"),
        ({"loss_weight": float("nan")}, "loss_weight=nan must be a number of at least 0"),
        ({"loss_weight": -0.5}, "loss_weight=-0.5 must be"),
        ({"sample_id": "x"}, "sample id 'x' is repeated"),
        ({"visuals": (replace(IMAGE, grid_h=5),)}, r"sample 'y' \(row 1\): grid \(1, 5, 6\) must be positive"),
        ({"visuals": (replace(VIDEO, grid_t=0),)}, r"grid \(0, 8, 2\) must be positive"),
    ],
)
def test_bad_values_are_named_with_their_sample(sample: dict[str, Any], message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        MetadataTable.from_samples([SAMPLES[0], replace(SAMPLES[1], **sample), SAMPLES[2]])


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="has no sample"):
        MetadataTable.from_samples([])
    write_table(table(), tmp_path / "meta.parquet")
    pq.write_table(pq.read_table(tmp_path / "meta.parquet").slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(MetadataError, match=r"empty\.parquet: the table has no sample"):
        read_table(tmp_path / "empty.parquet")


@pytest.mark.parametrize("column", ["sample_id", "loss_weight", "dataset_index", "dataset_row"])
def test_optional_columns_may_be_missing(tmp_path: Path, column: str) -> None:
    write_table(table(), tmp_path / "meta.parquet")
    pq.write_table(pq.read_table(tmp_path / "meta.parquet").drop_columns([column]), tmp_path / "meta.parquet")
    read = read_table(tmp_path / "meta.parquet")
    assert read.sample_ids.to_pylist() == (["0", "1", "2"] if column == "sample_id" else ["x", "y", "z"])


@pytest.mark.parametrize("column", ["text_tokens", "loss_tokens"])
def test_a_missing_column_or_value_is_named(tmp_path: Path, column: str) -> None:
    write_table(table(), tmp_path / "meta.parquet")
    arrow = pq.read_table(tmp_path / "meta.parquet")
    pq.write_table(arrow.drop_columns([column]), tmp_path / "less.parquet")
    with pytest.raises(MetadataError, match=rf"less\.parquet: column {column} is missing"):
        read_table(tmp_path / "less.parquet")
    holes = arrow.set_column(arrow.column_names.index(column), column, pa.array([1, None, 3]))
    pq.write_table(holes, tmp_path / "holes.parquet")
    with pytest.raises(MetadataError, match=rf"column {column} has no value in row 1"):
        read_table(tmp_path / "holes.parquet")
    words = arrow.set_column(arrow.column_names.index(column), column, pa.array(["1", "two", "3"]))
    pq.write_table(words, tmp_path / "words.parquet")
    with pytest.raises(MetadataError, match=rf"column {column} must hold whole numbers"):
        read_table(tmp_path / "words.parquet")


def test_a_foreign_visuals_column_is_named(tmp_path: Path) -> None:
    base = {"text_tokens": [1], "loss_tokens": [1]}
    for visuals, message in [
        (["a"], "visuals is string, not a list of structs"),
        ([[{"kind": "image"}]], r"column visuals\.grid_t is missing"),
        ([[{"kind": "sound"}]], "visual kind 'sound' is unknown"),
    ]:
        pq.write_table(pa.table({**base, "visuals": visuals}), tmp_path / "t.parquet")
        with pytest.raises(MetadataError, match=message):
            read_table(tmp_path / "t.parquet")


def test_flat_tables_of_tiles_are_read_from_parquet_and_csv(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text_tokens": [30, 5], "vision_tiles": [3, 0]}), tmp_path / "flat.parquet")
    (tmp_path / "flat.csv").write_text("text_tokens,vision_tiles\n30,3\n5,0\n")
    for name in ("flat.parquet", "flat.csv"):
        batch = read_table(tmp_path / name).batch()
        assert batch.sample_ids == ("0", "1")
        assert batch.grid_thw.tolist() == [[1, 32, 32]] * 3
        assert batch.tokens.tolist() == [30 + 3 * 256, 5]
        assert batch.loss_tokens.tolist() == [30, 5]
        assert batch.loss_weight.tolist() == [1.0, 1.0]


def test_bad_flat_tables_are_named(tmp_path: Path) -> None:
    for name, content, message in [
        ("a.csv", "text_tokens\n3\n", "column vision_tiles is missing"),
        ("b.csv", "text_tokens,vision_tiles\n3,-1\n", "row 0: vision_tiles=-1 is negative"),
        ("c.csv", "text_tokens,vision_tiles\n3,1.5\n", "vision_tiles must hold whole numbers"),
        (
            "loss.csv",
            "text_tokens,vision_tiles,loss_tokens\n3,0,3\n3,0,4\n",
            "row 1 has 4 loss_tokens but 3",
        ),
        ("d.csv", "", "not a readable CSV file"),
        ("e.parquet", "x", "not a readable Parquet file"),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(MetadataError, match=message):
            read_table(tmp_path / name)
    with pytest.raises(MetadataError, match=r"gone\.parquet: no such file; write it with `trimtab scan`"):
        read_table(tmp_path / "gone.parquet")


def test_a_table_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingsError, match="cannot be written"):
        write_table(table(), tmp_path / "file" / "meta.parquet")
    (tmp_path / "meta.parquet").mkdir()
    with pytest.raises(SettingsError, match="cannot be written"):
        write_table(table(), tmp_path / "meta.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "meta.parquet"]
