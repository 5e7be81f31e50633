"""What a report page is made of: groups of sections, each with prose, charts and a table of the same figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One of several states of a chart, chosen with a slider.

    Attributes:
        label: what the slider says.
        x: values of each trace.
    """

    label: str
    x: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One plot.

    Attributes:
        title: what it shows; read out by screen readers.
        figure: a plotly figure as JSON.
        height: pixels.
        frames: states to choose from; none leaves the figure as it is.
        first: index of the frame shown first.
        slider: what the slider chooses.
        legend: name and colour of what is drawn; none where there is but one thing.
    """

    title: str
    figure: str
    height: int = 320
    frames: list[Frame] = field(default_factory=list)
    first: int = 0
    slider: str = ""
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """Figures in rows; cells are text already, the first column names the row.

    Attributes:
        columns: headings.
        rows: cells.
        note: said below, such as how rows were thinned.
        marked: indices of rows that stand out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    marked: frozenset[int] = frozenset()


class Command(str):
    """A paragraph to copy into a shell; stands on the page as code."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """One question a reader has.

    Attributes:
        title: heading.
        text: paragraphs that say how to read it; of them a ``Command`` stands as code, and so do `words in backticks`.
        charts: plots.
        table: the same figures for keyboards and screen readers, or None.
        headline: its table stands open on the page, and is printed in the terminal.
    """

    title: str
    text: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    table: DataTable | None = None
    headline: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """Sections about one thing: runs side by side, or one command's output."""

    title: str
    sections: Sequence[Section]
    text: Sequence[str] = ()

    def anchor(self, section: Section | None = None) -> str:
        """Where links to the group, or one of its sections, lead."""
        words = self.title if section is None else f"{self.title} {section.title}"
        return "at-" + re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
