"""What `trimtab fit --json` prints: coefficients and how sure they are."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.rest import rest
from trimtab.report.sections import DataTable, Section

_TERMS = {
    "a": ("a", "ns per squared token"),
    "b": ("b", "ns per token"),
    "c": ("c", "ns per sequence"),
    "intercept": ("intercept_ms", "ms per step"),
}


def fit_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    rows = []
    for term, (key, unit) in _TERMS.items():
        error = document["standard_errors"].get(term)
        spread = "held at zero" if error is None else f"± {float(error):.3g}"
        rows.append([term, f"{float(document[key]):.6g}", spread, unit])
    return [
        Section(
            title="Coefficients",
            text=[
                f"Median error {float(document['median_error']):.1%}, R squared {float(document['r_squared']):.3f}, "
                f"{document.get('observations', document['steps']):,} observations.",
            ],
            table=DataTable(columns=["term", "value", "standard error", "unit"], rows=rows),
            headline=True,
        ),
        *rest(
            document, {"a", "b", "c", "intercept_ms", "standard_errors", "r_squared", "median_error", "observations"}
        ),
    ]
