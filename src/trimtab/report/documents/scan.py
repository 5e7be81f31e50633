"""What `trimtab scan --json` prints: sizes of a dataset."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section
from trimtab.schema.number_of import number_of

_COUNTS = (
    "samples", "images", "videos", "text_tokens", "visual_tokens", "loss_tokens", "longest_sample_tokens",
    "samples_without_loss", "seconds",
)  # fmt: skip
_SHOWN = 200


def scan_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    bad = document["bad_samples"]
    sections = [
        Section(
            title="Sizes",
            text=[f"Written to {document['out']}."],
            table=DataTable(
                columns=["", "count"],
                rows=[[name.replace("_", " "), number(document[name])] for name in _COUNTS if name in document],
            ),
            headline=True,
        )
    ]
    if bad:
        rows = [[str(one["where"]), str(one["reason"])] for one in bad[:_SHOWN]]
        note = f"{_SHOWN} of {len(bad)}; the file has all." if len(bad) > _SHOWN else ""
        table = DataTable(columns=["where", "reason"], rows=rows, note=note)
        sections.append(Section(title="Bad samples", text=[f"{number_of(len(bad), 'sample')} left out."], table=table))
    return [*sections, *rest(document, {*_COUNTS, "out", "bad_samples"})]
