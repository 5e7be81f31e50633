"""Opens a page in a headless browser and measures it there."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_DARK, _LIGHT = 0, 1

PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  // A transparent background is its parent's.
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)/.test(c)) return c; } return "rgb(255, 255, 255)"; };
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (e, property) => { const a = light(getComputedStyle(e)[property]), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const texts = [...document.querySelectorAll("p, h1, h2, h3, th, td, a:not(.skip), summary, figcaption, .legend li")];
  const ticks = [...document.querySelectorAll(".chart text")].filter((e) => e.textContent.trim());
  const drawn = [...document.querySelectorAll(".chart")].map((e) => e.querySelectorAll("svg.main-svg").length > 0);
  const slider = document.querySelector("input[type=range]");
  const moved = [];
  if (slider) {
    const bar = () => document.querySelector("figure:has(input) .chart").data.map((trace) => trace.x[0]);
    moved.push(bar()); slider.value = 0; slider.dispatchEvent(new Event("input")); moved.push(bar());
  }
  const found = {
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    width: document.documentElement.clientWidth,
    page_width: document.documentElement.scrollWidth,
    charts: drawn.length, drawn: drawn.filter(Boolean).length,
    wider: [...document.querySelectorAll(".chart .main-svg")].filter((e) => e.getBoundingClientRect().right
      > document.documentElement.clientWidth + 1).length,
    contrast: Math.min(...texts.map((e) => contrast(e, "color"))),
    tick_contrast: Math.min(...ticks.map((e) => contrast(e, "fill"))),
    unreachable: [...document.querySelectorAll("a, summary, input, .scroll")].filter((e) => e.tabIndex < 0).length,
    focusable: document.querySelectorAll("a, summary, input, .scroll").length,
    slider: moved,
    errors: window.problems,
  };
  document.documentElement.setAttribute("data-found", JSON.stringify(found));
}, 4000));
</script>
"""
_CATCH = """<script>window.problems = [];
addEventListener("error", (e) => window.problems.push(String(e.message)));
addEventListener("securitypolicyviolation", (e) => window.problems.push(e.violatedDirective + " " + e.blockedURI));
</script>"""


def find_browser() -> str | None:
    """Path of an installed browser, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def measure(page: Path, folder: Path, *, width: int, dark: bool) -> dict[str, Any]:
    """What the page is like at a width, in light or dark; all charts are on a very tall screen."""
    text = page.read_text(encoding="utf-8")
    copy = folder / "measured.html"
    copy.write_text(text.replace("<title>", _CATCH + "<title>", 1).replace("</body>", PROBE + "</body>", 1))
    frame = folder / "frame.html"  # a window has a least width, a frame has none
    frame.write_text(f'<iframe src="{copy.name}" style="border:0; width:{width}px; height:20000px"></iframe>{_RELAY}')
    done = _run(folder, dark, "--dump-dom", frame)
    (found,) = _Found(done).values
    result: dict[str, Any] = json.loads(found)
    return result


_RELAY = """<script>
const frame = document.querySelector("iframe");
const wait = setInterval(() => {
  const found = frame.contentDocument && frame.contentDocument.documentElement.getAttribute("data-found");
  if (found) { clearInterval(wait); document.documentElement.setAttribute("data-found", found); }
}, 100);
</script>"""


def _run(folder: Path, dark: bool, action: str, page: Path) -> str:
    browser = find_browser()
    assert browser is not None
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={_DARK if dark else _LIGHT}",
        "--window-size=1600,1200", "--virtual-time-budget=20000", action, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout


class _Found(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.values += [str(value) for name, value in attrs if name == "data-found"]
