"""Tables wider than the terminal keep every figure."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from trimtab.report.whole_table import print_whole


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_figure_is_cut_however_narrow_the_terminal(width: int) -> None:
    console = Console(file=StringIO(), width=width)
    table = Table("strategy", *(f"a long heading {column}" for column in range(6)))
    table.add_row("verl-bucketing", *(f"{column}23,456.789" for column in range(6)))
    print_whole(console, table)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in said
    assert all(f"a long heading {column}" in said and f"{column}23,456.789" in said for column in range(6))
    assert console.width == width
