"""Tables in the terminal with every figure whole: wider than the terminal rather than cut."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as its figures need, so that none ends in an ellipsis."""
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.print(table, width=max(needed, console.width), crop=False, no_wrap=True, overflow="ignore", soft_wrap=False)
