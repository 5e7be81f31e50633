"""What `trimtab stages --json` prints: where a pipeline is cut and what is recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from trimtab.report.documents.bars import bar_chart
from trimtab.report.documents.figure import figure
from trimtab.report.documents.rest import number, rest
from trimtab.report.sections import DataTable, Section

_TOLD = frozenset({"stages", "bounds", "recompute", "predicted_step_ms", "bubble", "peak_memory_gb", "baselines"})


def stages_sections(document: dict[str, Any]) -> list[Section]:
    """The sections."""
    peaks = [float(peak) for peak in document["peak_memory_gb"]]
    ranks = [f"rank {rank}" for rank in range(len(peaks))]
    plans = {"this plan": document, **document["baselines"]}
    times = [figure(plan, "predicted_step_ms", name) for name, plan in plans.items()]
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
            text=["Stage k runs on rank k modulo the ranks."],
            charts=[bar_chart("peak memory of each rank", ranks, {"peak": (peaks, "#2a9d8f")}, unit="GB")],
            table=DataTable(
                columns=["stage", "rank", "layers", "of which recomputed", "peak of its rank, GB"],
                rows=list(_stages(document["bounds"], document["recompute"], peaks)),
            ),
        ),
        *rest(document, _TOLD),
    ]


def _fullest(plan: dict[str, Any]) -> str:
    peaks = plan["peak_memory_gb"]
    return f"{max(map(float, peaks)) if isinstance(peaks, list) else float(peaks):.1f}"


def _fits(plan: dict[str, Any]) -> str:
    return number(plan["fits"]) if "fits" in plan else "yes"


def _stages(bounds: list[int], recompute: list[list[int]], peaks: list[float]) -> Iterator[list[str]]:
    for stage, ((first, end), layers) in enumerate(zip(pairwise(bounds), recompute, strict=True)):
        rank = stage % len(peaks)
        held = f"{first} to {end - 1}" if end > first else "none"
        yield [str(stage), str(rank), held, str(len(layers)), f"{peaks[rank]:.1f}"]
