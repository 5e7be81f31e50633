"""What `summary.json`, `trimtab demo --json` and `trimtab report --json` hold: medians of runs side by side."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section

_PAIR = ("baseline", "balanced")


def comparison_sections(document: dict[str, Any]) -> list[Section]:
    """A balanced run beside its baseline; a part named "supervised" follows."""
    sections = [_pair("Balanced beside baseline", document)]
    supervised = document.get("supervised")
    if supervised is not None:
        sections.append(_pair("The supervised part", supervised))
        sections += rest({f"supervised.{name}": value for name, value in supervised.items()}, _told("supervised."))
    return [*sections, *rest(document, {*_told(""), "supervised"})]


def groups_sections(document: dict[str, Any]) -> list[Section]:
    """Runs of each group."""
    sections = []
    for group in document["groups"]:
        said = [f"{name} is {factor:.2f}x as fast." for name, factor in group["speedup"].items() if factor is not None]
        table = _table(group["runs"])
        sections.append(Section(title=str(group["name"]), text=said, table=table, headline=True))
    return sections


def _told(prefix: str) -> set[str]:
    return {prefix + name for name in (*_PAIR, "speedup", "steps", "report", "groups")}


def _pair(title: str, document: dict[str, Any]) -> Section:
    return Section(
        title=title,
        text=[
            f"Medians over {document['steps']} steps; balanced is {float(document['speedup']):.2f}x as fast, paired by "
            "step."
        ],
        table=_table({name: document[name] for name in _PAIR}),
        headline=True,
    )


def _table(runs: dict[str, dict[str, Any]]) -> DataTable:
    flat = {name: _with_phases(summary) for name, summary in runs.items()}
    figures = list(dict.fromkeys(figure for summary in flat.values() for figure in summary))
    rows = [[figure, *(number(summary.get(figure)) for summary in flat.values())] for figure in figures]
    return DataTable(columns=["median of a step", *flat], rows=rows)


def _with_phases(summary: dict[str, Any]) -> dict[str, Any]:
    phases = {f"{name}, slowest rank, ms": value for name, value in summary.get("phases", {}).items()}
    return {**{name: value for name, value in summary.items() if name != "phases"}, **phases}
