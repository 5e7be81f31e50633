"""A balanced run beside its baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.cli.main import main
from trimtab.errors import MetadataError
from trimtab.report.comparison import compare
from trimtab.report.comparison_table import comparison_table
from trimtab.report.prediction import rank_error_of
from trimtab.report.run_comparison import compare_runs
from trimtab.report.run_records import read_steps
from trimtab.schema.reports import StepReport


def report_of(step: int, *, step_ms: float, rank_ms: tuple[float, float] = (10.0, 30.0)) -> StepReport:
    phases = {
        "data": [1.0, 2.0],
        "vision": [5.0, 4.0],
        "exchange": [0.5, 0.5],
        "language": [3.0, 9.0],
        "optimizer": [1.0, 1.0],
    }
    return StepReport(
        step=step, loss=1.0, loss_tokens=4, tokens=100, samples=2, step_ms=step_ms, exposed_data_ms=2.0,
        phases_ms=phases,
        rank_ms=list(rank_ms), predicted_rank_ms=[1.0, 2.0], step_ratio_before=1.5, step_ratio=1.4, bound_ratio=1.1,
        vision_ratio=1.2, token_ratio=1.3, observed_step_ratio=None, planning_ms=0.4, moved_bytes=0, decoded=[1, 1],
        learning_rate=0.1, grad_norm=1.0,
    )  # fmt: skip


BASELINE = [report_of(step, step_ms=40.0 + step) for step in range(6)]
BALANCED = [report_of(step, step_ms=20.0 + step / 2, rank_ms=(20.0, 20.0)) for step in range(8)]


def test_shared_steps_after_the_first_two_are_compared() -> None:
    found = compare(BALANCED, BASELINE)
    assert found.steps == [2, 3, 4, 5]
    assert found.baseline.step_ms == pytest.approx(43.5)
    assert found.balanced.step_ms == pytest.approx(21.75)
    assert found.speedup == pytest.approx(2.0)
    assert found.baseline.rank_ratio == pytest.approx(1.5)
    assert found.balanced.rank_ratio == pytest.approx(1.0)
    assert found.baseline.phases["language"] == 9.0
    assert found.baseline.rank_error == pytest.approx((1 / 3 / 0.25 - 1 + 1 - 2 / 3 / 0.75) / 2)
    assert "off by 22.2%" in str(rank_error_of(BASELINE))
    assert rank_error_of([replace(BASELINE[0], rank_ms=[1.0], predicted_rank_ms=[1.0])]) is None


def test_the_summary_has_the_documented_form() -> None:
    summary = compare(BALANCED, BASELINE).to_json()
    assert summary["steps"] == 4
    for run in ("balanced", "baseline"):
        assert {"step_ms", "exposed_data_ms", "step_ratio", "bound_ratio", "phases"} <= set(summary[run])
    assert json.loads(json.dumps(summary)) == summary


def test_runs_over_other_samples_are_refused() -> None:
    other = [replace(report, tokens=99) for report in BASELINE]
    with pytest.raises(MetadataError, match="step 2 has 2 samples of 100 tokens in one run and 2 of 99 in the other"):
        compare(BALANCED, other)


def test_runs_without_a_shared_step_are_refused() -> None:
    with pytest.raises(MetadataError, match="share no step after the first 2"):
        compare(BALANCED, BASELINE[:2])


def test_the_table_shows_both_runs() -> None:
    console = Console(record=True, width=100)
    console.print(comparison_table(compare(BALANCED, BASELINE)))
    text = console.export_text()
    assert "2.00x as fast" in text
    assert "step time, ms" in text


def test_records_are_read_back(tmp_path: Path) -> None:
    lines = [json.dumps({**report.to_json(), "added_later": 1}) for report in BASELINE]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    assert read_steps(tmp_path) == BASELINE


@pytest.mark.parametrize(
    ("content", "said"), [(None, "not found"), ("", "no step was recorded"), ("{\n", ":1: not a step record")]
)
def test_broken_records_are_named(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "steps.jsonl").write_text(content)
    with pytest.raises(MetadataError, match=said):
        read_steps(tmp_path)


def test_the_runs_of_a_name_are_compared_where_they_lie(tmp_path: Path) -> None:
    for name, reports in (("balanced", BALANCED), ("baseline", BASELINE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").write_text("".join(json.dumps(r.to_json()) + "\n" for r in reports))
    assert main(["report", str(tmp_path), "--json"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["speedup"] == 2.0
    assert (tmp_path / "report.html").exists()


def test_a_summary_that_holds_more_than_the_comparison_is_kept(tmp_path: Path) -> None:
    test_the_runs_of_a_name_are_compared_where_they_lie(tmp_path)
    (tmp_path / "summary.json").write_text('{"speedup": 3.0, "reward": {"first10": 0.5}}')
    assert main(["report", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["speedup"] == 3.0


def test_a_missing_run_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"has no balanced run; train one with balance\.mode=on"):
        compare_runs(tmp_path)
