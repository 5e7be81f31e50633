"""The sweep of `trimtab simulate --sweep --json`: settings changed one at a time, and what is recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.rest import number
from trimtab.report.documents.step_tokens import hold_different
from trimtab.report.sections import Chart, DataTable, Section

_BEST = "recommended"
_TRIED, _RECOMMENDED = "#8b95a1", "#2f80ed"


@dataclass(frozen=True)
class _Tried:
    """Settings that were simulated, and whether they are those given, or recommended."""

    label: str
    outcome: Mapping[str, Any]
    standing: str = ""

    @property
    def recommended(self) -> bool:
        return self.standing == _BEST


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
                *([f"Before that: {best['run_needs']}."] if best.get("run_needs") else []),
                f"Strategy {best['strategy']} throughout, one setting changed at a time.",
                *_sentences(document),
            ],
            charts=_charts(tried),
            table=DataTable(
                columns=["setting", "step ms", "tokens / GPU s", "memory"],
                rows=[_row(each) for each in tried],
                note="Simulated.",
                marked=frozenset(at for at, each in enumerate(tried) if each.recommended),
            ),
            headline=True,
        )
    ]


def _sentences(document: dict[str, Any]) -> list[str]:
    """What is left out of the figures, and what of them is no advice."""
    told = {"without_effect": "No effect", "not_recommended": "Not recommended, as it is the job itself or assumed"}
    return [f"{said}: {', '.join(document[name])}." for name, said in told.items() if document.get(name)]


def _tried(document: dict[str, Any]) -> list[_Tried]:
    """What was given, every change, and the changes recommended together."""
    best, idle = document["recommended"], document.get("without_effect") or ()
    as_given = [row for row in document["strategies"] if row["name"] == best["strategy"]]
    tried = [_Tried("as given", row, "" if best["settings"] else _BEST) for row in as_given]
    shown = [point for point in document["sweep"] if not all(name in idle for name, _ in _pairs(point))]
    tried += [_Tried(_settings(point), point, point.get("standing") or "") for point in shown]
    if len(best["settings"]) > 1:
        tried.append(_Tried("these together", best, _BEST))
    return tried


def _row(tried: _Tried) -> list[str]:
    outcome = tried.outcome
    name = f"{tried.label} ({tried.standing})" if tried.standing else tried.label
    fits = "does not fit" if outcome["out_of_memory"] else "fits"
    return [name, number(outcome["step_ms"]), number(outcome["tokens_per_gpu_s"]), fits]


def _charts(tried: Sequence[_Tried]) -> list[Chart]:
    """Times of steps only where the steps hold the same."""
    charts = [_chart("simulated throughput", tried, "tokens_per_gpu_s", "tokens / GPU s")]
    if not hold_different([each.outcome for each in tried]):
        charts.append(_chart("simulated step time", tried, "step_ms", "ms"))
    return charts


def _chart(title: str, tried: Sequence[_Tried], figure: str, unit: str) -> Chart:
    def values(recommended: bool) -> list[float | None]:
        return [float(each.outcome[figure]) if each.recommended == recommended else None for each in tried]

    series = {"tried": (values(False), _TRIED), "recommended": (values(True), _RECOMMENDED)}
    return bar_chart(title, [each.label for each in tried], series, unit=unit, stacked=True)


def _pairs(point: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in point["settings"].items()]


def _settings(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _pairs(point))
