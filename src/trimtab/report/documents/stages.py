"""What `trimtab stages --json` prints: where a pipeline is cut and what is recomputed."""

from __future__ import annotations

from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section

_TOLD = frozenset({"stages", "bounds", "recompute", "predicted_step_ms", "bubble", "peak_memory_gb", "baselines"})


def stages_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    peaks = [float(peak) for peak in document["peak_memory_gb"]]
    names = [f"stage {stage}" for stage in range(len(peaks))]
    plans = {"this plan": document, **document["baselines"]}
    times = [float(plan["predicted_step_ms"]) for plan in plans.values()]
    return [
        Section(
            title="Plans (predicted)",
            text=[f"Bubble {float(document['bubble']):.1%} of the step. Predicted; nothing was run."],
            charts=[bar_chart("predicted time of a step", list(plans), {"step": (times, "#2f80ed")}, unit="ms")],
            table=DataTable(
                columns=["plan", "step ms", "fullest stage, GB", "fits"],
                rows=[
                    [name, number(plan["predicted_step_ms"]), _fullest(plan), _fits(plan)]
                    for name, plan in plans.items()
                ],
            ),
            headline=True,
        ),
        Section(
            title="Stages",
            charts=[bar_chart("peak memory of each stage", names, {"peak": (peaks, "#2a9d8f")}, unit="GB")],
            table=DataTable(
                columns=["stage", "bounds", "recomputed", "peak GB"],
                rows=[
                    [name, _entry(document["bounds"], at), _entry(document["recompute"], at), f"{peaks[at]:.1f}"]
                    for at, name in enumerate(names)
                ],
            ),
        ),
        *rest(document, _TOLD),
    ]  # fmt: skip


def _fullest(plan: dict[str, Any]) -> str:
    peaks = plan["peak_memory_gb"]
    return f"{max(map(float, peaks)) if isinstance(peaks, list) else float(peaks):.1f}"


def _fits(plan: dict[str, Any]) -> str:
    return number(plan["fits"]) if "fits" in plan else "yes"


def _entry(values: list[Any], at: int) -> str:
    """What the list says of a stage; bounds may have one entry more than there are stages."""
    if at >= len(values):
        return "–"
    value = values[at]
    return "–".join(str(one) for one in value) if isinstance(value, list) else number(value)
