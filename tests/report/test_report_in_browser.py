"""The page in a headless browser: drawn, readable in light and dark, on a phone and by keyboard, and offline."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from headless_browser import find_browser, measure
from report_cases import row, write_grpo, write_run

from trimtab.report.build import build_report
from trimtab.report.html_page import write_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "baseline", [row(step, (10.0 + step, 30.0)) for step in range(8)])
    write_run(folder / "balanced", [row(step) for step in range(8)])
    write_grpo(folder / "grpo" / "learn" / "balanced")
    many = [row(step, tuple(10.0 + rank for rank in range(40))) for step in range(4)]
    write_run(folder / "a-run-with-a-long-name-that-must-not-widen-the-page" / "balanced", many)
    report = build_report([folder])
    write_page(folder / "report.html", report.title, report.groups, written=datetime(2026, 1, 2))
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_is_drawn_and_readable(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    found = measure(page, tmp_path, width=width, dark=dark)
    assert found["errors"] == []
    assert found["dark"] is dark
    assert found["width"] == width
    assert found["page_width"] <= width, "the page scrolls sideways"
    assert found["drawn"] == found["charts"] > 20
    assert found["wider"] == 0, "charts are cut off"
    assert found["contrast"] >= 4.5, "WCAG AA for text"
    assert found["tick_contrast"] >= 4.5
    assert found["focusable"] > 40
    assert found["unreachable"] == 0, "a control the keyboard cannot reach"
    before, after = found["slider"]
    assert before != after, "the slider moves nothing"
