"""What the repository says of itself is true: versions, documented metrics, named commands and files, size limits."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import trimtab
from trimtab.schema.reports import GLOSSARY

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FILE_LINES = 400
FUNCTION_LINES = 60


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_version_strings_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert trimtab.__version__ == project["version"] == importlib.metadata.version("trimtab")


def test_the_changelog_has_a_section_for_this_version() -> None:
    release = trimtab.__version__.partition(".dev")
    section = "## [Unreleased]" if release[1] else f"## [{release[0]}]"
    assert section in (ROOT / "CHANGELOG.md").read_text()


def test_every_metric_is_documented_in_the_glossarys_words() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs" / "metrics.md").read_text(), flags=re.MULTILINE)
    assert dict(rows) == GLOSSARY


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_make_target_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_file_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks|examples|tools)/[\w./-]*)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_no_source_file_is_longer_than_the_limit() -> None:
    lengths = {page_name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    lengths = {
        f"{page_name(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.body[0].lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}


def test_every_module_is_named_for_what_it_holds() -> None:
    assert [page_name(path) for path in SOURCES if path.stem in {"utils", "util", "helpers", "misc", "common"}] == []


def test_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == [], "pytest imports them by their base name"
