"""What a script of `benchmarks/` prints with --json: cases and checks."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section


def benchmark_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    columns = ["case", "variant", "median", "unit", "least", "most", "n"]
    names = ("case", "variant", "median", "unit", "min", "max", "n")
    checks = [
        [str(check["what"]), number(check["value"]), number(check["limit"]), "yes" if check["ok"] else "no"]
        for check in document["checks"]
    ]
    failed = frozenset(at for at, check in enumerate(document["checks"]) if not check["ok"])
    return [
        Section(
            title="Cases",
            text=[f"{document['name']}, {document['date']}, {document['machine']}."],
            table=DataTable(
                columns=columns, rows=[[number(case[name]) for name in names] for case in document["cases"]]
            ),
            headline=True,
        ),
        Section(
            title="Checks",
            text=[f"{len(failed)} of {len(checks)} failed." if failed else f"All {len(checks)} held."],
            table=DataTable(columns=["promise", "value", "limit", "held"], rows=checks, marked=failed),
            headline=True,
        ),
        *rest(document, {"name", "date", "machine", "cases", "checks"}),
    ]
