"""The sweep of `trimtab simulate --sweep --json`: settings changed one at a time, and what is recommended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.rest import number
from trimtab.report.sections import Chart, DataTable, Section

_TRIED, _RECOMMENDED = "#8b95a1", "#2f80ed"


@dataclass(frozen=True)
class _Tried:
    """Settings that were simulated, and whether they are the recommended ones."""

    label: str
    outcome: Mapping[str, Any]
    recommended: bool


def sweep_sections(document: dict[str, Any]) -> list[Section]:
    """The section; none where nothing was swept."""
    if not document.get("sweep"):
        return []
    best = document["recommended"]
    tried = _tried(document)
    return [
        Section(
            title="Sweep (simulated)",
            text=[
                f"Recommended: {best['strategy']} with {_settings(best) or 'the settings given'}; "
                f"{number(best['step_ms'])} ms a step, {number(best['tokens_per_gpu_s'])} tokens / GPU s, "
                f"{'fits in memory' if best['fits'] else 'does not fit in memory'}.",
                *map(str, best.get("doubts") or ()),
                *([f"{best.get('run_remark') or 'run'}: {best['run']}"] if best.get("run") else []),
                f"Strategy {best['strategy']} throughout, one setting changed at a time.",
            ],
            charts=[
                _chart("simulated throughput", tried, "tokens_per_gpu_s", "tokens / GPU s"),
                _chart("simulated step time", tried, "step_ms", "ms"),
            ],
            table=DataTable(
                columns=["setting", "step ms", "tokens / GPU s", "memory"],
                rows=[_row(each) for each in tried],
                note="Simulated.",
                marked=frozenset(at for at, each in enumerate(tried) if each.recommended),
            ),
            headline=True,
        )
    ]


def _tried(document: dict[str, Any]) -> list[_Tried]:
    """What was given, every change, and the changes recommended together."""
    best, given = document["recommended"], document.get("settings") or {}
    as_given = [row for row in document["strategies"] if row["name"] == best["strategy"]]
    tried = [_Tried("as given", row, not best["settings"]) for row in as_given]
    for point in document["sweep"]:
        wanted = all(str(best["settings"].get(name, _given(given, name))) == value for name, value in _pairs(point))
        tried.append(_Tried(_settings(point), point, wanted))
    if len(best["settings"]) > 1:
        tried.append(_Tried("these together", best, recommended=True))
    return tried


def _row(tried: _Tried) -> list[str]:
    outcome = tried.outcome
    name = f"{tried.label} (recommended)" if tried.recommended else tried.label
    fits = "does not fit" if outcome["out_of_memory"] else "fits"
    return [name, number(outcome["step_ms"]), number(outcome["tokens_per_gpu_s"]), fits]


def _chart(title: str, tried: Sequence[_Tried], figure: str, unit: str) -> Chart:
    def values(recommended: bool) -> list[float | None]:
        return [float(each.outcome[figure]) if each.recommended == recommended else None for each in tried]

    series = {"tried": (values(False), _TRIED), "recommended": (values(True), _RECOMMENDED)}
    return bar_chart(title, [each.label for each in tried], series, unit=unit, stacked=True)


def _pairs(point: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in point["settings"].items()]


def _settings(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _pairs(point))


def _given(settings: Mapping[str, Any], name: str) -> str | None:
    """A setting's value as it is written on the command line, or None where the document does not say."""
    value: Any = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else value if isinstance(value, str) else json.dumps(value)
