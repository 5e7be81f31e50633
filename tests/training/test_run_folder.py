"""The records of a run that was cut off are taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.errors import TrainingError
from trimtab.schema.skipped import SkippedSample
from trimtab.training.run_folder import RunFolder

RECORDS = [json.dumps({"step": step, "times": {"of": {"ranks": [1.0]}}, "loss": 0.5}) for step in range(4)]


@pytest.mark.parametrize("cut", range(1, len(RECORDS[3]) + 1))
@pytest.mark.parametrize("name", ["steps.jsonl", "replies.jsonl"])
def test_a_record_cut_off_anywhere_is_dropped(tmp_path: Path, name: str, cut: int) -> None:
    path = tmp_path / name
    path.write_text("\n".join([*RECORDS[:3], RECORDS[3][:cut]]))
    RunFolder(tmp_path, first_step=3)
    assert path.read_text().splitlines() == RECORDS[:3]


def test_what_a_lost_machine_leaves_behind_the_last_record_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_bytes("\n".join(RECORDS[:2]).encode() + b"\n\x00\x00\x00\n\xff")
    RunFolder(tmp_path, first_step=2)
    assert (tmp_path / "steps.jsonl").read_text().splitlines() == RECORDS[:2]


@pytest.mark.parametrize("broken", ['{"loss": {}}', "[1]", "{"])
def test_a_broken_line_between_records_is_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / "steps.jsonl").write_text("\n".join([RECORDS[0], broken, RECORDS[1]]))
    with pytest.raises(TrainingError, match=r"steps\.jsonl:2: not the record of a step; remove the line"):
        RunFolder(tmp_path, first_step=2)
    assert broken in (tmp_path / "steps.jsonl").read_text()


BAD = {"sample_id": "clip", "reason": "truncated", "replacement": "cat", "joins_step": 5}


@pytest.mark.parametrize(
    "broken", ['[{"st', "", "\0\0", "5", "[5]", "{}x", "[{}]", json.dumps([BAD]), json.dumps([{**BAD, "step": "1"}])]
)
def test_a_damaged_list_of_bad_samples_is_named_before_anything_is_dropped(tmp_path: Path, broken: str) -> None:
    (tmp_path / "bad_samples.json").write_text(broken)
    (tmp_path / "steps.jsonl").write_text("\n".join(RECORDS))
    with pytest.raises(TrainingError, match=r"bad_samples\.json: does not list samples .*; remove it to go on"):
        RunFolder(tmp_path, first_step=2)
    assert (tmp_path / "steps.jsonl").read_text().splitlines() == RECORDS
    RunFolder(tmp_path, first_step=0)
    assert not (tmp_path / "bad_samples.json").exists(), "a run from its start lists anew"


def test_bad_samples_of_earlier_steps_stay_listed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, first_step=0)
    for step in (1, 3):
        folder.write_bad_samples(step, [SkippedSample(**BAD)])
    assert RunFolder(tmp_path, first_step=2).bad_samples() == [{"step": 1, **BAD}]
