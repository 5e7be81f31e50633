"""Tables in the terminal with every figure whole: wider than the terminal rather than cut."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_UNLIMITED = 1000


def print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as its figures need, so that none ends in an ellipsis."""
    unlimited = console.options.update(max_width=_UNLIMITED)
    needed = Measurement.get(console, unlimited, table).maximum
    if needed <= console.width:
        console.print(table)
        return
    width = console.width
    console.width = needed  # printing takes no width beyond the console's own
    try:
        console.print(table, crop=False, soft_wrap=False)
    finally:
        console.width = width
