"""The headline tables of a report, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.report.sections import DataTable, Group, Section
from trimtab.report.whole_table import print_whole


def print_groups(groups: Sequence[Group], console: Console) -> None:
    """Print what stands open on the page: the prose and table of every headline section, by name where several do."""
    for group in groups:
        console.print(Text(group.title, style="bold"), soft_wrap=True)
        shown = [section for section in group.sections if section.headline]
        for section in shown:
            if len(shown) > 1:
                console.print(Text(section.title, style="bold"), soft_wrap=True)
            _print(section, console)


def _print(section: Section, console: Console) -> None:
    for text in section.text:
        console.print(Text(text), soft_wrap=True)
    if section.table and section.table.rows:
        print_whole(console, _table(section.table))


def _table(data: DataTable) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=Text(data.note) if data.note else None)
    table.caption_justify = "left"
    for at, column in enumerate(data.columns):
        table.add_column(Text(column), justify="left" if at == 0 else "right", no_wrap=at == 0)
    for row in data.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
