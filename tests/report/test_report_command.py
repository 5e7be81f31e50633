"""`trimtab report`: what it prints and writes, and that bad input ends in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_cases import row, write_grpo, write_pair, write_run

from trimtab.cli.main import main


def test_it_writes_a_page_and_prints_the_medians(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(write_pair(tmp_path / "mine"))]) == 0
    printed = capsys.readouterr().out
    assert "step time, ms" in printed
    assert f"report: {tmp_path / 'mine' / 'report.html'}" in printed
    assert (tmp_path / "mine" / "report.html").stat().st_size > 100_000


def test_json_is_one_object_with_every_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pair(tmp_path)
    write_grpo(tmp_path / "grpo" / "learn" / "balanced")
    page = tmp_path / "elsewhere" / "page.html"
    page.parent.mkdir()
    assert main(["report", str(tmp_path), "--json", "--out", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    pair, learn = found["groups"]
    assert pair["speedup"] == {"balanced": 1.3333}
    assert set(learn["runs"]["balanced"]["phases"]) == {"data", "rollout", "reward", "inference", "update"}
    assert found["report"] == str(page)
    assert page.exists()


def test_what_it_printed_can_be_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(write_pair(tmp_path)), "--json"]) == 0
    (tmp_path / "printed.json").write_text(capsys.readouterr().out)
    assert main(["report", str(tmp_path / "printed.json")]) == 0
    assert "balanced is 1.33x as fast." in capsys.readouterr().out
    assert (tmp_path / "printed.report.html").exists()


def test_every_group_shown_again_has_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("long", "short"):
        write_pair(tmp_path / "runs" / name)
    assert main(["report", str(tmp_path / "runs"), "--json"]) == 0
    (tmp_path / "printed.json").write_text(capsys.readouterr().out)
    assert main(["report", str(tmp_path / "printed.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("runs / long", "runs / short"):
        assert lines[lines.index(name) + 1] == "balanced is 1.33x as fast."


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line a command ends with."""
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no run, that is no folder with steps.jsonl" in refused([str(tmp_path)], capsys)
    assert "not found; give a run's folder" in refused([str(tmp_path / "none")], capsys)


GOOD = json.dumps(row(0))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "no step was recorded"),
        ("{", ":1: not a step record"),
        ("[1]", "holds a list, not an object"),
        ("[" * 100_000, ":1: not a step record"),
        (json.dumps({"step": 0}), "has no loss"),
        (f"{GOOD}\n{GOOD}", ":2: step 0 follows step 0"),
        (json.dumps(row(0, step_ms=float("nan"))), "step_ms=nan must be finite"),
        (json.dumps(row(0, step_ms=10**400)), "must be a number"),
        (json.dumps(row(0, step_ms="fast")), "step_ms='fast' must be a number"),
        (json.dumps(row(0, step="1")), "step='1' must be a whole number"),
        (json.dumps(row(0, rank_ms=[])), "rank_ms=[] must list a time for each rank"),
        (json.dumps(row(0, rank_ms=[1.0, float("inf")])), "must be finite numbers"),
        (json.dumps(row(0, predicted_rank_ms=[1.0])), "predicted_rank_ms must have 2 entries, one a rank"),
        (json.dumps(row(0, phases_ms={"data": [1.0]})), "phases_ms.data must have 2 entries"),
        (json.dumps(row(0, phases_ms=3)), "phases_ms=3 must hold a list for each phase"),
        (json.dumps(row(0, compute_ms=None)), "compute_ms=None must hold a list for each phase"),
        (json.dumps(row(0, bad_samples=[1])), "bad_samples=[1] must list sample ids"),
    ],
)
def test_broken_steps_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, said: str
) -> None:
    run = write_run(tmp_path / "balanced", [])
    (run / "steps.jsonl").write_text(lines)
    line = refused([str(run)], capsys)
    assert said in line
    assert "steps.jsonl" in line


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", "a: [", "is no YAML"),
        ("config.yaml", "- 1", "holds no settings by name"),
        ("evaluation.json", "{", "is no JSON report can show"),
        ("bad_samples.json", "[1]", "does not list samples with their reasons"),
        ("left_out.json", "{}x", "does not list samples with their reasons"),
        ("steps.jsonl", b"\xff\xfe", "is no text"),
    ],
)
def test_broken_files_of_a_run_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, said: str
) -> None:
    run = write_run(tmp_path / "balanced", [row(0)])
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused([str(run)], capsys)
    assert said in line
    assert name in line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "is no JSON report can show"),
        (b"", "is no JSON report can show"),
        (b"\xff", "is no text"),
        (b"[1, 2]", "must hold a JSON object, found a list; give what a --json printed"),
        (b"null", "must hold a JSON object, found nothing (null); give what a --json printed"),
        (b'{"step_ms": NaN}', "holds NaN, which is no number"),
        (b'{"step_ms": 1e999}', "holds 1e999, beyond what a float holds"),
        (b"[" * 100_000, "is no JSON report can show"),
        (b'{"hello": 1}', "is the output of no command report knows"),
        (b'{"ranks": 1, "batch_size": 1, "batches": 1, "strategies": 3}', "has the keys of trimtab plan but not its"),
        (b'{"balanced": {}, "baseline": {}, "speedup": "x"}', "has the keys of trimtab demo but not its"),
    ],
)
def test_files_that_are_no_output_of_a_command_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert said in refused([str(path)], capsys)


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "balanced", [row(0)])
    assert "cannot be written" in refused([str(run), "--out", str(tmp_path)], capsys)
