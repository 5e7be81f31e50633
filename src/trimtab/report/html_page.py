"""Renders a report as one HTML file that works offline: style, script, plotly and all figures are in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import trimtab
from trimtab.report.breakable import breakable
from trimtab.report.paragraph import paragraph
from trimtab.report.sections import Chart, Group
from trimtab.schema.output_file import write_output

_FOLDER = "page"


def write_page(path: Path, title: str, groups: Sequence[Group], *, written: datetime) -> None:
    """Render the page and write it.

    Raises:
        SettingsError: the file cannot be written.
    """
    write_output(path, render_page(title, groups, written=written))


def render_page(title: str, groups: Sequence[Group], *, written: datetime) -> str:
    """The page as text; everything that comes from data is escaped."""
    pages = _environment()
    return pages.get_template("report.html.j2").render(
        title=title,
        groups=groups,
        written=written.strftime("%Y-%m-%d %H:%M"),
        version=trimtab.__version__,
        style=_own_file("style.css"),
        script=_own_file("page.js"),
        plotly=Markup(get_plotlyjs()) if any(section.charts for group in groups for section in group.sections) else "",
    )


@cache
def _environment() -> Environment:
    pages = Environment(
        loader=PackageLoader("trimtab.report", _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["figure_json"] = _figure_json
    pages.filters["breakable"] = breakable
    pages.filters["paragraph"] = paragraph
    return pages


def _own_file(name: str) -> Markup:
    return Markup((files("trimtab.report") / _FOLDER / name).read_text(encoding="utf-8"))


def _figure_json(chart: Chart) -> Markup:
    """What the page's script reads; no "<" of the data can end the element it stands in."""
    frames = json.dumps([frame.x for frame in chart.frames])
    labels = json.dumps([frame.label for frame in chart.frames])
    text = f'{{"figure": {chart.figure}, "frames": {frames}, "labels": {labels}}}'
    return Markup(text.replace("<", "\\u003c"))
