"""A scan: what every sample costs, the bad ones listed, nothing lost."""

import errno
import json
import threading
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import Image

from chat_tokenizer import chat_tokenizer
from trimtab.errors import DatasetError, MetadataError
from trimtab.families import family_for
from trimtab.loader.conversation import encode
from trimtab.loader.scan import Scanner
from trimtab.loader.scan_journal import ScanJournal
from trimtab.loader.sources import Dataset, open_dataset
from trimtab.media.visual import describe

FAMILY = family_for("qwen2_5_vl")
ANSWER = {"role": "assistant", "content": "Red."}


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner(tokenizer=chat_tokenizer(), family=FAMILY, geometry=FAMILY.defaults)


def dataset(folder: Path, *records: dict[str, Any]) -> Dataset:
    Image.new("RGB", (120, 60)).save(folder / "good.png")
    (folder / "bad.png").write_text("not an image")
    (folder / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_dataset(folder / "d.jsonl")


def ask(*images: str, **fields: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "<image>" * len(images) + "Which colour?"}
    return {"messages": [question, ANSWER], "images": list(images), **fields}


def test_the_table_counts_what_the_encoder_gives(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, ask("good.png", "good.png"), ask())
    result = scanner.scan(data)
    assert (len(result.table), result.bad, result.without_loss) == (2, (), 0)
    for row in range(2):
        sample = result.table.sample(row)
        encoded = encode(data[row], sample.visuals, scanner.tokenizer, FAMILY, FAMILY.defaults)
        assert int(result.table.batch([row]).tokens[0]) == len(encoded)
        assert (sample.text_tokens, sample.loss_tokens) == (encoded.text_tokens, encoded.loss_tokens)
        assert [visual.token_offset for visual in sample.visuals] == encoded.visual_offsets.tolist()
    assert result.table.geometry == FAMILY.defaults
    assert result.table.files == data.files


def test_bad_samples_are_left_out_and_listed_and_the_rest_can_still_be_found(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, ask("bad.png"), ask("good.png"), ask("gone.png"), {"messages": []}, ask(id="last"))
    seen: list[int] = []
    result = scanner.scan(data, on_bad_sample="skip", workers=3, advance=lambda: seen.append(1))
    assert len(seen) == 5
    assert [bad.where for bad in result.bad] == [f"{tmp_path}/d.jsonl:{line}" for line in (1, 3, 4)]
    reasons = ["bad.png: of no image format", "gone.png: no such file", "must be a list"]
    for bad, reason in zip(result.bad, reasons, strict=True):
        assert reason in bad.reason
        assert bad.where not in bad.reason, "the place is told once"
    assert result.table.dataset_row.tolist() == [1, 4]
    assert result.table.sample(1).sample_id == data[4].sample_id == "last"


def test_the_first_bad_sample_ends_the_scan_unless_skipped(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, ask("good.png"), ask("bad.png"), {"messages": []})
    with pytest.raises(DatasetError, match=r"d\.jsonl:2: .*bad\.png: of no image format .*or skip bad samples"):
        scanner.scan(data)


def test_a_dataset_of_bad_samples_alone_is_an_error(tmp_path: Path, scanner: Scanner) -> None:
    with pytest.raises(DatasetError, match=r"none of 2 samples can be used; the first: .*d\.jsonl:1"):
        scanner.scan(dataset(tmp_path, ask("bad.png"), ask("gone.png")), on_bad_sample="skip")


def test_the_only_sample_being_bad_is_told_in_the_singular(tmp_path: Path, scanner: Scanner) -> None:
    with pytest.raises(DatasetError, match=r"the only sample cannot be used: .*d\.jsonl:1: .*bad\.png"):
        scanner.scan(dataset(tmp_path, ask("bad.png")), on_bad_sample="skip")


def test_samples_without_loss_are_counted_not_refused(tmp_path: Path, scanner: Scanner) -> None:
    prompt = {"prompt": [{"role": "user", "content": "<image>How many?"}], "images": ["good.png"]}
    assert scanner.scan(dataset(tmp_path, prompt, ask())).without_loss == 1


def test_a_turn_of_weight_0_has_no_loss_tokens_whatever_an_earlier_scan_found(tmp_path: Path, scanner: Scanner) -> None:
    record, journal = ask("good.png"), tmp_path / "t.journal"
    assert scanner.scan(dataset(tmp_path, record), journal=journal).table.loss_tokens[0] > 0
    record["messages"] = [record["messages"][0], {**ANSWER, "weight": 0}]
    result = scanner.scan(dataset(tmp_path, record), journal=journal)
    assert (result.table.loss_tokens.tolist(), result.without_loss) == ([0], 1)


def test_repeated_ids_are_told_apart_by_their_place(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, ask(id="a"), ask(id="b"), ask(id="a"))
    assert scanner.scan(data).table.sample_ids.to_pylist() == ["a@d.jsonl:1", "b", "a@d.jsonl:3"]


def test_an_empty_id_is_none(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, ask(id=""), ask(id=None), ask(id=0))
    assert scanner.scan(data).table.sample_ids.to_pylist() == ["d.jsonl:1", "d.jsonl:2", "0"]


@pytest.mark.parametrize("ids", [("a", "a", "a@d.jsonl:1"), ("a@d.jsonl:1", "a@d.jsonl:1@file0@d.jsonl:4", "a", "a")])
def test_an_id_that_equals_a_made_up_name_is_told_apart_too(
    tmp_path: Path, scanner: Scanner, ids: tuple[str, ...]
) -> None:
    for order in permutations(ids):
        names = scanner.scan(dataset(tmp_path, *(ask(id=name) for name in order))).table.sample_ids.to_pylist()
        assert len(set(names)) == len(ids)
        assert all(name.startswith(given) for name, given in zip(names, order, strict=True))


def test_samples_of_files_of_one_name_are_told_apart_by_the_file(tmp_path: Path, scanner: Scanner) -> None:
    line = json.dumps(ask()) + "\n"
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "d.jsonl").write_text(line + json.dumps(ask(id="a")) + "\n")
    data = open_dataset([tmp_path / folder / "d.jsonl" for folder in ("x", "y")])
    assert scanner.scan(data).table.sample_ids.to_pylist() == [
        "d.jsonl:1@file0",
        "a@d.jsonl:2@file0",
        "d.jsonl:1@file1",
        "a@d.jsonl:2@file1",
    ]


def test_a_journal_kept_under_other_names_gives_the_samples_their_present_ones(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, journal = dataset(tmp_path, ask("good.png"), ask()), tmp_path / "t.journal"
    first = scanner.scan(data, journal=journal).table
    assert first.sample_ids.to_pylist() == ["d.jsonl:1", "d.jsonl:2"]
    journal.write_text(journal.read_text().replace("d.jsonl:1", "d.jsonl:0").replace("d.jsonl:2", "d.jsonl:1"))
    monkeypatch.setattr("trimtab.loader.scan.encode", None)  # nothing is scanned anew
    again = scanner.scan(data, journal=journal).table
    assert [again.sample(row) for row in range(2)] == [first.sample(row) for row in range(2)]


@pytest.mark.parametrize("damage", ["5", "null", "[[1], {}]", "[" * 9999 + "]" * 9999, '{"a": 1, "b": 2}'])
def test_a_journal_line_that_is_no_pair_is_passed_over(tmp_path: Path, scanner: Scanner, damage: str) -> None:
    data, journal = dataset(tmp_path, ask("good.png")), tmp_path / "t.journal"
    journal.write_text(damage + "\n")
    assert scanner.scan(data, journal=journal).table.sample(0) == scanner.scan_row(data, 0)


@pytest.mark.parametrize("damage", [5, "visuals", [], {}, {"visuals": []}, {"visuals": [5]}, {"visuals": [{"x": 1}]}])
def test_a_known_sample_that_is_damaged_is_scanned_again(tmp_path: Path, scanner: Scanner, damage: Any) -> None:
    data, journal = dataset(tmp_path, ask("good.png")), tmp_path / "t.journal"
    scanner.scan(data, journal=journal)
    journal.write_text(json.dumps([json.loads(journal.read_text())[0], damage]) + "\n")
    assert scanner.scan(data, journal=journal).table.sample(0) == scanner.scan_row(data, 0)
    assert len(journal.read_text().splitlines()) == 2


def test_order_does_not_depend_on_the_workers(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, *(ask(*["good.png"] * (row % 3)) for row in range(100)))
    tables = [scanner.scan(data, workers=workers).table for workers in (1, 5)]
    one, other = ([table.sample(row) for row in range(100)] for table in tables)
    assert one == other


def test_a_scan_in_processes_equals_one_in_threads(tmp_path: Path, scanner: Scanner) -> None:
    data = dataset(tmp_path, *(ask(*["good.png"] * (row % 3)) for row in range(70)), ask("bad.png"))
    threads, processes = (
        scanner.scan(data, workers=2, place=place, on_bad_sample="skip") for place in ("threads", "processes")
    )
    assert [threads.table.sample(row) for row in range(70)] == [processes.table.sample(row) for row in range(70)]
    assert threads.bad == processes.bad


def test_a_full_disk_is_named_by_the_journal(tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    full = mock.Mock(**{"write.side_effect": OSError(errno.ENOSPC, "No space left on device")})
    journal = ScanJournal(tmp_path / "t.journal", fingerprint="")
    monkeypatch.setattr(journal, "_stream", full)
    monkeypatch.setattr("trimtab.loader.scan.ScanJournal", lambda *_, **__: journal)
    with pytest.raises(MetadataError, match=r"t\.journal: the scan's journal cannot be kept \(No space left") as caught:
        scanner.scan(dataset(tmp_path, ask("good.png", id="a")), journal=tmp_path / "t.journal", workers=1)
    left = [thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]
    assert left == [], f"they wait until {caught!r} is forgotten, and may deadlock then"


def test_a_stopped_scan_goes_on_and_a_grown_dataset_costs_what_is_new(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []

    def counted(kind: Any, uri: str, *rest: Any) -> Any:
        probed.append(Path(uri).name)
        return describe(kind, uri, *rest)

    monkeypatch.setattr("trimtab.loader.scan.describe", counted)
    journal = tmp_path / "t.parquet.journal"
    first = dataset(tmp_path, ask("good.png", id="a"), ask("bad.png"), ask("good.png", "good.png"))
    with pytest.raises(DatasetError, match=r"d\.jsonl:2"):
        scanner.scan(first, journal=journal, workers=1)
    lines = journal.read_text().splitlines()
    assert len(lines) == 1, "what was scanned before the bad sample is kept"
    journal.write_text(lines[0] + "\n" + lines[0][:40])  # as a crash would leave it

    probed.clear()
    records = [ask("good.png", id="renamed"), ask("good.png", "good.png"), ask()]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    grown = open_dataset(tmp_path / "d.jsonl")
    result = scanner.scan(grown, journal=journal)
    assert probed == ["good.png", "good.png"]
    assert result.table.sample(0) == scanner.scan_row(grown, 0)

    probed.clear()
    again = scanner.scan(grown, journal=journal)
    assert probed == []
    assert [again.table.sample(row) for row in range(3)] == [result.table.sample(row) for row in range(3)]
    Image.new("RGB", (240, 60)).save(tmp_path / "good.png")
    assert scanner.scan(grown, journal=journal).table.sample(0).visuals[0].width == 240
    other = Scanner(tokenizer=scanner.tokenizer, family=FAMILY, geometry=FAMILY.defaults, train_on="last_assistant")
    probed.clear()
    other.scan(grown, journal=journal)
    assert len(probed) == 3
