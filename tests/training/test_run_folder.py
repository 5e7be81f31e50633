"""The records of a run that was cut off are taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.errors import TrainingError
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
