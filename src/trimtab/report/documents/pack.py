"""What `trimtab pack --json` prints: packs, their certificate, and what they gain."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section
from trimtab.schema.number_of import number_of

_SHOWN = 200
_TOLD = frozenset(
    {"method", "samples", "packs", "lower_bound", "pad_ratio", "dist_ratio", "plain", "gain", "spread", "caps"}
    | {"oversized", "oversized_reasons", "seconds"}
)


def pack_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    above = float(document["packs"]) / max(1.0, float(document["lower_bound"])) - 1
    caps = ", ".join(f"{number(value)} {name}" for name, value in document["caps"].items() if value is not None)
    gains = [f"{ranks} ranks: {gain['says']}" for ranks, gain in document["gain"].items() if gain]
    return [
        Section(
            title="Packs",
            text=[
                f"{document['packs']:,} packs of at most {caps} from {document['samples']:,} samples by "
                f"{document['method']}, {above:.2%} above the proven lower bound of {document['lower_bound']:,}.",
                *gains,
            ],
            table=_ratios(document),
            headline=True,
        ),
        Section(title="What a device runs at once", table=_spread(document["spread"])),
        *_oversized(document),
        *rest(document, _TOLD),
    ]


def _ratios(document: dict[str, Any]) -> DataTable:
    rows = []
    for ranks in document["dist_ratio"]:
        batches = f"random batches of {document['plain']['batch']}"
        for label, source in ((batches, document["plain"]), ("packs", document)):
            ratios = source["dist_ratio"][ranks]
            cells = ["–" if value is None else f"{float(value):.4f}" for value in ratios.values()]
            rows.append([f"{ranks} ranks, {label}", f"{float(source['pad_ratio']):.4f}", *cells])
    names = list(next(iter(document["dist_ratio"].values()), {}))
    return DataTable(
        columns=["", "padding", *names],
        rows=rows,
        note="Share of tokens that are padding, and share of a step in which ranks wait, by kind of work.",
    )


def _spread(spread: dict[str, Any]) -> DataTable:
    rows = []
    for name in spread["after"]:
        cells = [f"{spread[when][name]['mean']:,.1f} ± {spread[when][name]['sd']:,.1f}" for when in ("before", "after")]
        rows.append([name.replace("_", " "), *cells])
    return DataTable(columns=["mean ± deviation", "random batches", "packs"], rows=rows)


def _oversized(document: dict[str, Any]) -> list[Section]:
    listed = list(zip(document["oversized"], document["oversized_reasons"], strict=True))
    if not listed:
        return []
    rows = [[str(sample), str(reason)] for sample, reason in listed[:_SHOWN]]
    return [
        Section(
            title="Samples no pack can hold",
            text=[f"{number_of(len(listed), 'sample')} left out."],
            table=DataTable(columns=["sample", "reason"], rows=rows, note="" if len(rows) == len(listed) else "Cut."),
        )
    ]
