"""The documentation says what is so: settings, error messages and files it names exist."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
FOLDERS = ("src", "tests", "benchmarks", "examples", "tools", "docs")

sys.path.insert(0, str(ROOT / "tools"))
from settings_page import MOVES, PAGE, settings_of, settings_page  # noqa: E402 (a script, not a package)

from trimtab.planning.settings import PlanSettings  # noqa: E402
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings  # noqa: E402
from trimtab.simulate.scenario import Scenario  # noqa: E402
from trimtab.training.grpo.settings import GRPOSettings  # noqa: E402


def test_the_settings_page_is_that_of_the_dataclasses() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run: python tools/settings_page.py"


def test_every_setting_has_a_meaning_and_every_note_a_setting() -> None:
    known = {setting.name: setting for setting in settings_of(GRPOSettings)}
    for kind in (PlanSettings, BalancerSettings, EncoderBalanceSettings):
        known |= {f"{kind.__name__}.{setting.name}": setting for setting in settings_of(kind, nested=False)}
    known |= {f"Scenario.{setting.name}": setting for setting in settings_of(Scenario)}
    assert [name for name, setting in known.items() if not setting.meaning] == []
    assert set(MOVES) - set(known) == set()


def messages() -> str:
    """All text of the sources' strings, adjacent parts joined as they are printed."""
    found: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


FOREIGN = {"operator torchvision::nms does not exist"}


def test_messages_that_troubleshooting_quotes_are_printed_by_the_code() -> None:
    said = messages()
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    quoted = [part.strip() for row in rows for quote in re.findall(r'"([^"]+)"', row) for part in quote.split("…")]
    assert len(quoted) > 25
    assert [part for part in quoted if part not in said and part not in FOREIGN] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    known = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`([\w./-]+/[\w-]+\.py)(?:: \w+(?:\(\))?)?`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


def test_the_sites_names_may_break_behind_their_joints_and_options_stay_whole() -> None:
    configured = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    context = {"body": '<p>a.b <span class="pre">loading.ship_rate=1e9</span> <span class="pre">--json</span></p>'}
    configured["break_names"](None, "page", "page.html", context, None)
    assert context["body"] == (
        '<p>a.b <span class="pre">loading.<wbr>ship_<wbr>rate=1e9</span> <span class="pre option">--json</span></p>'
    )
