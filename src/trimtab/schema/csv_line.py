"""Where a row of a CSV table stands in its file."""

from __future__ import annotations

import csv
from pathlib import Path


def line_of_row(path: Path, row: int) -> int | None:
    """The line a row begins in, both as people count: lines from 1, the header's too; rows from 0 behind it.

    Empty lines hold no row, and a quoted cell may hold several lines. None where the file has no such row.
    """
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader, before, records = csv.reader(file), 0, 0
        try:
            for cells in reader:
                if cells and records == row + 1:
                    return before + 1
                records += bool(cells)
                before = reader.line_num
        except csv.Error:
            pass
    return None
