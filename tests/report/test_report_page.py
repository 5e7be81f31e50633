"""The page of `trimtab report`: what it says of runs, and that nothing of the data becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_cases import row, write_grpo, write_pair, write_run

from trimtab.report.breakable import breakable
from trimtab.report.build import Report, build_report
from trimtab.report.figures.thinning import TABLE_ROWS, bins, evenly, medians
from trimtab.report.html_page import render_page
from trimtab.report.paragraph import paragraph
from trimtab.report.sections import Command, Group, Section

WRITTEN = datetime(2026, 1, 2, 3, 4)


def page_of(report: Report) -> str:
    return render_page(report.title, report.groups, written=WRITTEN)


def section_of(group: Group, title: str) -> Section:
    return next(section for section in group.sections if section.title == title)


def figures_of(section: Section) -> list[dict[str, list[dict[str, object]]]]:
    return [json.loads(chart.figure) for chart in section.charts]


def test_variants_stand_side_by_side_baseline_first(tmp_path: Path) -> None:
    (group,) = build_report([write_pair(tmp_path / "mine")]).groups
    summary = section_of(group, "Summary")
    assert summary.table is not None
    assert list(summary.table.columns) == ["median of a step", "baseline", "balanced"]
    assert list(summary.table.rows[0]) == ["step time, ms", "40", "30"]
    assert any(
        text.startswith("Against baseline, balanced is 1.33x as fast, paired by step (") for text in summary.text
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loading.workers_per_rank=12", "loading.<wbr>workers_<wbr>per_<wbr>rank=12"),
        ("0.95 of 1_000, a/b", "0.95 of 1_000, a/<wbr>b"),
        ("<b>x.y", "&lt;b&gt;x.<wbr>y"),
    ],
)
def test_names_may_break_behind_their_joints_only(text: str, shown: str) -> None:
    assert str(breakable(text)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`trimtab scan` it, <b>", "<p><code>trimtab scan</code> it, &lt;b&gt;</p>"),
        (Command("trimtab `a` <b>"), '<pre class="command"><code>trimtab `a` &lt;b&gt;</code></pre>'),
    ],
)
def test_code_of_a_paragraph_stands_as_code(text: str, shown: str) -> None:
    assert str(paragraph(text)) == shown
    section = Section(title="Sweep", text=[text])
    assert shown in render_page("page", [Group(title="one", sections=[section])], written=WRITTEN)


def test_every_question_has_its_section(tmp_path: Path) -> None:
    (group,) = build_report([write_pair(tmp_path)]).groups
    assert [section.title for section in group.sections] == [
        "Summary", "Timeline of a step", "Computing time of each rank", "Step time and exposed data time",
        "Ratios and bound", "Predicted against measured", "Memory", "Loss", "Bad samples", "Settings",
    ]  # fmt: skip
    charted = [section for section in group.sections if section.charts]
    assert all(section.table is not None and section.table.rows for section in charted), "a chart without its figures"


def test_the_timeline_splits_each_phase_into_computing_and_waiting(tmp_path: Path) -> None:
    (group,) = build_report([write_pair(tmp_path)]).groups
    (chart,) = section_of(group, "Timeline of a step").charts
    names = [name for name, _ in chart.legend]
    assert names == ["data", "vision", "exchange", "language", "optimizer"]
    frame = chart.frames[chart.first]
    baseline_ranks = slice(0, 2)
    computing, waiting = frame.x[2 * names.index("vision")], frame.x[2 * names.index("vision") + 1]
    assert computing[baseline_ranks] == [2.0, 6.0]  # a fifth of 10 and 30 ms
    assert waiting[baseline_ranks] == [5.5, 1.5]  # the rest of 7.5 ms of wall time
    assert [one.label for one in chart.frames] == [str(step) for step in range(8)]  # the steps both have


def test_settings_that_differ_come_first_and_keys_are_hidden(tmp_path: Path) -> None:
    write_pair(tmp_path)
    for name in ("baseline", "balanced"):
        path = tmp_path / name / "config.yaml"
        path.write_text(path.read_text() + "rollout:\n  server:\n    api_key: s3cret\n")
    report = build_report([tmp_path])
    table = section_of(report.groups[0], "Settings").table
    assert table is not None
    assert list(table.rows[0]) == ["balance.mode", "off", "on"]
    assert table.marked == {0}
    assert "s3cret" not in page_of(report)


def test_reinforcement_shows_its_rewards(tmp_path: Path) -> None:
    (group,) = build_report([write_grpo(tmp_path / "learn" / "balanced")]).groups
    section = section_of(group, "Reward and loss")
    (rewards, *_) = figures_of(section)
    assert rewards["data"][0]["y"] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert section.table is not None
    assert {"mean reward", "loss", "divergence from the reference"} <= set(section.table.columns)


def test_bad_samples_are_listed_with_their_reasons(tmp_path: Path) -> None:
    run = write_run(tmp_path / "balanced", [row(0), row(1, bad_samples=["7"])])
    (run / "bad_samples.json").write_text(
        json.dumps([{"step": 1, "sample_id": "7", "reason": "cut off", "replacement": "3", "joins_step": 5}])
    )
    (run / "left_out.json").write_text(json.dumps([{"sample_id": "9", "reason": "too long"}]))
    table = section_of(build_report([run]).groups[0], "Bad samples").table
    assert table is not None
    assert [list(cells) for cells in table.rows] == [
        ["balanced", "1", "7", "cut off", "3, step 5"],
        ["balanced", "before the run", "9", "too long", ""],
    ]


def test_a_run_that_diverged_is_shown_and_said(tmp_path: Path) -> None:
    rows = [row(0), row(1, loss=float("nan"), grad_norm=None), row(2)]
    section = section_of(build_report([write_run(tmp_path / "balanced", rows)]).groups[0], "Loss")
    assert "balanced: the loss was not finite in 1 step (1)." in section.text
    assert "balanced: skipped, its gradient not finite: 1 step (1)." in section.text
    assert figures_of(section)[0]["data"][0]["y"] == [2.0, None, pytest.approx(2 / 3)]


def test_times_that_include_waiting_are_not_split(tmp_path: Path) -> None:
    rows = [row(step, compute_includes_waiting=True) for step in range(3)]
    (group,) = build_report([write_run(tmp_path / "balanced", rows)]).groups
    (chart,) = section_of(group, "Timeline of a step").charts
    assert all(value == 0 for frame in chart.frames for waiting in frame.x[1::2] for value in waiting)


def test_many_ranks_become_a_heat_map_and_a_choice_of_ranks(tmp_path: Path) -> None:
    rows = [row(step, tuple(10.0 + rank for rank in range(40))) for step in range(4)]
    (group,) = build_report([write_run(tmp_path / "balanced", rows)]).groups
    assert figures_of(section_of(group, "Computing time of each rank"))[0]["data"][0]["type"] == "heatmap"
    timeline = section_of(group, "Timeline of a step")
    assert "Of 40 ranks, the 16 busiest and the 16 least busy are shown." in timeline.text
    assert timeline.table is not None
    assert {cells[0] for cells in timeline.table.rows} == {f"rank {rank}" for rank in range(40) if not 16 <= rank < 24}


def test_a_run_resumed_on_fewer_ranks_is_shown(tmp_path: Path) -> None:
    rows = [row(step, (20.0,) * (4 if step < 3 else 2)) for step in range(6)]
    report = build_report([write_run(tmp_path / "balanced", rows)])
    assert "4 ranks" in section_of(report.groups[0], "Summary").text[0]
    assert page_of(report)


def test_long_runs_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    rows = [row(step) for step in range(1100)]
    report = build_report([write_run(tmp_path / "balanced", rows)])
    section = section_of(report.groups[0], "Step time and exposed data time")
    assert "Each point is the median of 3 steps." in section.text
    assert section.table is not None
    assert len(section.table.rows) == TABLE_ROWS
    assert section.table.note == f"{TABLE_ROWS} of 1100 steps; steps.jsonl has all."


def test_thinning_keeps_ends_and_medians() -> None:
    assert evenly(10, 4) == [0, 3, 6, 9]
    assert [list(one) for one in bins(5, 2)] == [[0, 1, 2], [3, 4]]
    assert medians([1.0, 9.0, 2.0, None, float("nan")], 2) == [2.0, None]


def test_runs_of_several_folders_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name / "balanced", [row(step) for step in range(4)])
    (group,) = build_report([tmp_path / "a", tmp_path / "b"]).groups
    table = section_of(group, "Summary").table
    assert table is not None
    assert list(table.columns[1:]) == ["a/balanced", "b/balanced"]


def test_a_lone_run_says_how_to_get_its_counterpart(tmp_path: Path) -> None:
    write_run(tmp_path / "balanced", [row(0)])
    text = section_of(build_report([tmp_path]).groups[0], "Summary").text
    assert "Nothing to compare with: train the same with balance.mode=off loader.mode=central name=mine." in text


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_of_the_data_becomes_markup(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)><b>&amp;"
    run = write_run(tmp_path / "<i>run", [row(0), row(1)], f"name: {json.dumps(evil)}\n{json.dumps(evil)}: 1\n")
    (run / "bad_samples.json").write_text(json.dumps([{"step": 1, "sample_id": evil, "reason": evil}]))
    rows = [row(step, phases_ms={evil: [1.0, 2.0]}, compute_ms={evil: [1.0, 1.0]}) for step in range(2)]
    other = write_run(tmp_path / "balanced", rows)
    report = replace(build_report([run, other]), title=evil)
    tags = [tag for tag, _ in _Elements(page_of(report)).tags]
    assert "img" not in tags
    assert "b" not in tags
    assert "i" not in tags


def test_the_page_asks_no_server_for_anything(tmp_path: Path) -> None:
    page = page_of(build_report([write_pair(tmp_path)]))
    elements = _Elements(page).tags
    assert [tag for tag, attributes in elements if "src" in attributes or tag in ("link", "iframe")] == []
    assert all(str(attributes["href"]).startswith("#") for tag, attributes in elements if tag == "a")
    assert "default-src 'none'" in page


def test_every_link_of_the_page_leads_to_one_place(tmp_path: Path) -> None:
    write_pair(tmp_path)
    write_grpo(tmp_path / "grpo" / "learn" / "balanced")
    elements = _Elements(page_of(build_report([tmp_path]))).tags
    targets = [attributes["id"] for _, attributes in elements if "id" in attributes]
    links = [str(attributes["href"])[1:] for tag, attributes in elements if tag == "a"]
    assert sorted(targets) == sorted(set(targets))
    assert set(links) <= set(targets)


def test_the_same_report_gives_the_same_page(tmp_path: Path) -> None:
    write_pair(tmp_path)
    first, second = (re.sub(r'"uid":"[^"]*"', "", page_of(build_report([tmp_path]))) for _ in range(2))
    assert first == second
