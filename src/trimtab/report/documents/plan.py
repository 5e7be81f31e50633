"""What `trimtab plan --json` prints: strategies compared."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.figure import figure
from trimtab.report.documents.rest import rest
from trimtab.report.sections import DataTable, Section
from trimtab.schema.number_of import number_of

_RATIOS = ("step_ratio", "bound_ratio", "attention_ratio", "attention_floor", "vision_ratio", "token_ratio")


def plan_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    rows = document["strategies"]
    planned = [row for row in rows if "infeasible" not in row]
    names = [str(row["name"]) for row in planned]
    series = {
        "mean over batches": ([_of_batches(row, "step_ratio") for row in planned], "#2f80ed"),
        "worst batch": ([_of_batches(row, "step_ratio", "max") for row in planned], "#8b95a1"),
    }
    refused = [f"{row['name']} cannot be: {row['infeasible']}" for row in rows if "infeasible" in row]
    return [
        Section(
            title="Strategies",
            text=[
                f"{document['model']}: {number_of(document['batches'], 'batch', 'batches')} of "
                f"{number_of(document['batch_size'], 'sample')} on "
                f"{number_of(document['ranks'], 'rank')}, sync={document['sync']}. Predicted; nothing was run.",
                "Step ratio: predicted step time over that of perfectly even work. The line at 1 is the least.",
                *refused,
            ],
            charts=[bar_chart("step ratio of each strategy", names, series, unit="step ratio", one_line=True)]
            if planned
            else [],
            table=_table(planned),
            headline=True,
        ),
        *rest(document, {"strategies", "model", "batches", "batch_size", "ranks", "sync"}),
    ]


def _of_batches(row: dict[str, Any], name: str, figure_of: str = "mean") -> float:
    """A figure over batches: their mean, or another."""
    return figure(row.get(name), figure_of, f"{name} of strategy {row['name']!r}")


def _table(planned: list[dict[str, Any]]) -> DataTable:
    columns = [
        "strategy",
        "step ratio",
        "worst",
        "bound",
        "attention",
        "floor",
        "vision",
        "token",
        "GB moved",
        "plan ms",
    ]
    rows = []
    for row in planned:
        means = [f"{_of_batches(row, name):.3f}" for name in _RATIOS]
        worst = f"{_of_batches(row, 'step_ratio', 'max'):.3f}"
        moved = figure(row, "all_to_all_bytes", f"strategy {row['name']!r}")
        figures = [f"{moved / 1e9:.2f}", f"{_of_batches(row, 'planning_ms', 'median'):.2f}"]
        rows.append([str(row["name"]), means[0], worst, *means[1:], *figures])
    return DataTable(columns=columns, rows=rows, note="Means over batches, and the worst step ratio.")
