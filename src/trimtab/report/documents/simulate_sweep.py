"""The sweep of `trimtab simulate --sweep --json`: settings changed one at a time, and what is recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.figure import figure
from trimtab.report.documents.overflow import missing
from trimtab.report.documents.rest import number
from trimtab.report.documents.step_tokens import hold_different
from trimtab.report.sections import Chart, Command, DataTable, Section

_BEST = "recommended"
_TRIED, _RECOMMENDED = "#8b95a1", "#2f80ed"


@dataclass(frozen=True)
class _Tried:
    """Settings that were simulated, or why they cannot be; and whether they are those given, or recommended."""

    label: str
    outcome: Mapping[str, Any]
    standing: str = ""

    @property
    def recommended(self) -> bool:
        return self.standing == _BEST

    @property
    def refused(self) -> str:
        return str(self.outcome.get("error") or "")


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
                *(_recommended(best) if best["fits"] else _nearest(best)),
                f"Strategy {best['strategy']} throughout, one setting changed at a time.",
                *_sentences(document),
            ],
            charts=_charts([each for each in tried if not each.refused]),
            table=DataTable(
                columns=["setting", "step ms", "tokens / GPU s", "memory"],
                rows=[_row(each) for each in tried],
                note="Simulated.",
                marked=frozenset(at for at, each in enumerate(tried) if each.recommended),
            ),
            headline=True,
        )
    ]


def _recommended(best: Mapping[str, Any]) -> list[str]:
    """What to run, and how sure that is."""
    step, speed = (number(figure(best, name, "what is recommended")) for name in ("step_ms", "tokens_per_gpu_s"))
    said = [
        f"Recommended: {_named(best)}; {step} ms a step, {speed} tokens / GPU s, fits in memory.",
        *map(str, best.get("doubts") or ()),
    ]
    if best.get("run"):
        said += [f"{best.get('run_remark') or 'run'}:", Command(best["run"])]
    return said + ([f"Before that: {best['run_needs']}."] if best.get("run_needs") else [])


def _nearest(best: Mapping[str, Any]) -> list[str]:
    """Nothing is worth running: what overflows least, and what would help."""
    said = [f"Nothing fits in memory; the nearest is {_named(best)}: {missing(best['out_of_memory'])}."]
    remedy = str(best.get("remedy") or "")
    return said + ([f"{remedy[:1].upper()}{remedy[1:]}."] if remedy else [])


def _named(best: Mapping[str, Any]) -> str:
    return f"{best['strategy']} with {_settings(best) or 'the settings given'}"


def _sentences(document: dict[str, Any]) -> list[str]:
    """What is left out of the figures, and what of them is no advice."""
    told = {"without_effect": "No effect", "not_recommended": "Not recommended, as it is the job itself or assumed"}
    return [f"{said}: {', '.join(document[name])}." for name, said in told.items() if document.get(name)]


def _tried(document: dict[str, Any]) -> list[_Tried]:
    """What was given, every change, and the changes recommended together."""
    best, idle = document["recommended"], document.get("without_effect") or ()
    chosen = _BEST if best["fits"] else ""
    as_given = [row for row in document["strategies"] if row["name"] == best["strategy"]]
    tried = [_Tried("as given", row, "" if best["settings"] else chosen) for row in as_given]
    shown = [point for point in document["sweep"] if not all(name in idle for name, _ in _pairs(point))]
    told = [str(point.get("standing") or "") for point in shown]
    standings = [chosen if standing == _BEST else standing for standing in told]
    tried += [_Tried(_settings(point), point, standing) for point, standing in zip(shown, standings, strict=True)]
    if len(best["settings"]) > 1:
        tried.append(_Tried("these together", best, chosen))
    return tried


def _row(tried: _Tried) -> list[str]:
    outcome = tried.outcome
    name = f"{tried.label} ({tried.standing})" if tried.standing else tried.label
    if tried.refused:
        return [name, "–", "–", f"cannot be: {tried.refused}"]
    fits = "does not fit" if outcome["out_of_memory"] else "fits"
    step, speed = (number(figure(outcome, name, tried.label)) for name in ("step_ms", "tokens_per_gpu_s"))
    return [name, step, speed, fits]


def _charts(tried: Sequence[_Tried]) -> list[Chart]:
    """Times of steps only where the steps hold the same."""
    charts = [_chart("simulated throughput", tried, "tokens_per_gpu_s", "tokens / GPU s")]
    if not hold_different([each.outcome for each in tried]):
        charts.append(_chart("simulated step time", tried, "step_ms", "ms"))
    return charts


def _chart(title: str, tried: Sequence[_Tried], shown: str, unit: str) -> Chart:
    def values(recommended: bool) -> list[float | None]:
        return [figure(each.outcome, shown, each.label) if each.recommended == recommended else None for each in tried]

    series = {"tried": (values(False), _TRIED), "recommended": (values(True), _RECOMMENDED)}
    if not any(each.recommended for each in tried):
        del series["recommended"]
    crowded = {at for at, each in enumerate(tried) if each.outcome["out_of_memory"]}
    return bar_chart(title, [each.label for each in tried], series, unit=unit, stacked=True, crowded=crowded)


def _pairs(point: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in point["settings"].items()]


def _settings(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _pairs(point))
