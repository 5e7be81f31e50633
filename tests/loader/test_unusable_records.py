"""A record that a library chokes on is one bad sample, named with its line; the others are scanned."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chat_tokenizer import chat_tokenizer
from trimtab.errors import DatasetError
from trimtab.families import family_for
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import open_dataset
from trimtab.schema.table_file import read_table, write_table

FAMILY = family_for("qwen2_5_vl")
HALF = "a \ud83d b"


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner(tokenizer=chat_tokenizer(), family=FAMILY, geometry=FAMILY.defaults)


def talk(question: Any = "<image>?", image: str = "good.png", **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "Red."}]
    return {"messages": turns, "images": [image] if "<image>" in question else [], **fields}


UNUSABLE = {
    json.dumps(talk(HALF)): "turn 0 holds '\\ud83d' at character 2, half of a surrogate pair",
    json.dumps(talk(id=HALF)): "the id holds '\\ud83d'",
    json.dumps(talk(image=HALF)): "b' holds '\\ud83d'",
    json.dumps(talk(image="a\0.png")): "a\\x00.png' holds a NUL character",
    json.dumps(talk(image="x" * 300)): "OSError: ",
    json.dumps({**talk(), "n": 0})[:-2] + "9" * 5000 + "}": "Exceeds the limit",
    json.dumps({**talk(), "n": 0})[:-2] + "[" * 9999 + "]" * 9999 + "}": "RecursionError: ",
    json.dumps({"messages": [{"role": ["user"], "content": "x"}]}): "unknown role ['user']",
    json.dumps({HALF: 1}): "none of the fields messages",
    '{"messages": null}': "messages must hold a list of turns, found null; correct or remove the record",
    '{"messages": null, "prompt": null}': "messages and prompt must hold a list of turns, found null",
    "{}": "the record has no field, none of messages, conversations, prompt; complete or remove it",
}


@pytest.mark.parametrize(("line", "reason"), UNUSABLE.items(), ids=[str(case) for case in range(len(UNUSABLE))])
def test_it_is_left_out_by_name_and_the_rest_is_scanned(
    tmp_path: Path, scanner: Scanner, line: str, reason: str
) -> None:
    Image.new("RGB", (60, 60)).save(tmp_path / "good.png")
    data, journal = tmp_path / "d.jsonl", tmp_path / "t.journal"
    data.write_text(f"{json.dumps(talk())}\n{line}\n{json.dumps(talk())}\n")
    for _ in range(2):  # the second time with a journal
        result = scanner.scan(open_dataset(data, allowed_roots=[tmp_path]), on_bad_sample="skip", journal=journal)
        assert [bad.where for bad in result.bad] == [f"{data}:2"]
        assert reason in result.bad[0].reason
        assert (result.bad[0].where + result.bad[0].reason).encode(), "any terminal can print it"
        assert result.table.dataset_row.tolist() == [0, 2]
    write_table(result.table, tmp_path / "t.parquet")
    assert len(read_table(tmp_path / "t.parquet")) == 2
    with pytest.raises(DatasetError, match=r"d\.jsonl:2: .* \(or skip bad samples\)"):
        scanner.scan(open_dataset(data))


def test_text_of_a_parquet_row_that_is_not_utf8_is_one_bad_sample(tmp_path: Path, scanner: Scanner) -> None:
    text = pa.array([b"Which?", b"\xff\xfe"], pa.binary()).cast(pa.string(), safe=False)
    turns = pa.StructArray.from_arrays([pa.array(["user", "user"]), text], names=["role", "content"])
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), turns)
    pq.write_table(pa.table({"messages": column}), tmp_path / "d.parquet")
    result = scanner.scan(open_dataset(tmp_path / "d.parquet"), on_bad_sample="skip")
    assert result.table.dataset_row.tolist() == [0]
    assert "UnicodeDecodeError: " in result.bad[0].reason


def test_what_no_record_is_to_blame_for_still_ends_the_scan(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("trimtab.loader.scan.describe", full)
    (tmp_path / "d.jsonl").write_text(json.dumps(talk()) + "\n")
    with pytest.raises(MemoryError, match="no room"):
        scanner.scan(open_dataset(tmp_path / "d.jsonl"), on_bad_sample="skip")


def test_an_array_nested_too_deeply_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text("[" * 9999 + "]" * 9999)
    with pytest.raises(DatasetError, match=r"d\.json: not valid JSON \(maximum recursion depth"):
        open_dataset(tmp_path / "d.json")


def test_a_dataset_whose_name_is_not_utf8_is_refused_before_it_is_scanned(tmp_path: Path) -> None:
    data = tmp_path / "d\udcff.jsonl"
    data.write_text(json.dumps(talk()) + "\n")
    with pytest.raises(DatasetError, match=r"the dataset: the path .*udcff.*surrogate"):
        open_dataset(data)
