"""The page in a headless browser: drawn, readable in light and dark, on a phone and by keyboard, and offline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from headless_browser import Browser, find_browser
from report_cases import row, write_grpo, write_run

from trimtab.cli.main import main
from trimtab.report.build import build_report
from trimtab.report.html_page import write_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed"),
]

MEASURES = (Path(__file__).parent / "page_measures.js").read_text()
TEXT_MEASURES = (Path(__file__).parent / "text_measures.js").read_text()
FIRST_BARS = "document.querySelector('figure:has(input) .chart').data.map((trace) => trace.x[0])"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "baseline", [row(step, (10.0 + step, 30.0)) for step in range(8)])
    write_run(folder / "balanced", [row(step) for step in range(8)])
    write_grpo(folder / "grpo" / "learn" / "balanced")
    many = [row(step, tuple(10.0 + rank for rank in range(40))) for step in range(4)]
    write_run(folder / "a-run-with-a-long-name-that-must-not-widen-the-page" / "balanced", many)
    report = build_report([folder])
    write_page(folder / "report.html", report.title, report.groups, written=datetime(2026, 1, 2))
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_is_drawn_and_readable_and_asks_nobody(browser: Browser, page: str, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    found = browser.evaluate(MEASURES)
    assert browser.problems() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))] == []
    assert found["width"] == width
    assert found["page_width"] <= width, "the page scrolls sideways"
    assert found["drawn"] == found["charts"] > 20
    assert found["cut_off"] == 0
    assert found["contrast"] >= 4.5, "WCAG AA for text"
    assert found["tick_contrast"] >= 4.5
    assert found["controls"] > 40
    assert found["unreachable"] == 0, "a control the keyboard cannot reach"


def test_the_keyboard_reaches_the_slider_and_moves_the_timeline(browser: Browser, page: str) -> None:
    browser.open(page, width=1280)
    for _ in range(60):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.type") == "range":
            break
    else:
        pytest.fail("sixty presses of Tab reach no slider")
    label = "document.querySelector('.slider output').textContent"
    bars, step = browser.evaluate(FIRST_BARS), int(browser.evaluate(label))
    browser.press("ArrowRight")
    assert int(browser.evaluate(label)) == step + 1
    assert browser.evaluate(FIRST_BARS) != bars
    assert browser.evaluate("document.activeElement.getAttribute('aria-valuetext')") == str(step + 1)


def test_a_change_to_dark_recolours_charts_already_drawn(browser: Browser, page: str) -> None:
    browser.open(page, width=1280, dark=False)
    browser.evaluate(MEASURES)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert browser.evaluate(MEASURES)["tick_contrast"] >= 4.5


@pytest.mark.parametrize("width", [390, 1280])
def test_a_sweeps_text_is_whole_on_a_phone_too(
    browser: Browser, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ranks=8", "shards=8", "batch_size=16", "steps=1", "strategies=[all,verl-bucketing]", "--sweep", "--json"]
    assert main(["simulate", "flexrl-video-heavy", *words]) == 0
    (tmp_path / "sweep.json").write_text(capsys.readouterr().out)
    report = build_report([tmp_path / "sweep.json"])
    write_page(tmp_path / "sweep.html", report.title, report.groups, written=datetime(2026, 1, 2))
    browser.open((tmp_path / "sweep.html").as_uri(), width=width)
    found = browser.evaluate(TEXT_MEASURES)
    assert found["outside"] == [], "a label leaves its chart"
    assert found["touching"] == 0, "labels of an axis touch"
    assert found["broken"] == [], "a name is broken within a word"
    assert found["page_width"] <= width
