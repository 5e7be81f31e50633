"""Runs side by side: what the page says of them, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.errors import MetadataError
from trimtab.report.comparison import compare, summarise
from trimtab.report.comparison_table import summary_rows
from trimtab.report.figures.learning import learning
from trimtab.report.figures.memory import memory
from trimtab.report.figures.predicted import predicted
from trimtab.report.figures.rank_time import rank_time
from trimtab.report.figures.ratios import ratios
from trimtab.report.figures.step_time import step_time
from trimtab.report.figures.timeline import timeline
from trimtab.report.run import WARM_UP_STEPS, Run
from trimtab.report.sections import DataTable, Group, Section
from trimtab.schema.number_of import number_of

BASELINE = "baseline"

_SECRET = "api_key"
_BAD_SHOWN = 200


def run_group(title: str, runs: Sequence[Run]) -> Group:
    """The group of runs shown side by side.

    Args:
        title: heading.
        runs: at least one; their names differ.
    """
    sections = [
        summary(runs),
        timeline(runs),
        rank_time(runs),
        step_time(runs),
        ratios(runs),
        predicted(runs),
        memory(runs),
        learning(runs),
        _left_out(runs),
        _settings(runs),
    ]
    return Group(title=title, sections=[section for section in sections if section is not None])


def summary(runs: Sequence[Run]) -> Section:
    """Medians of every run, and how much faster it is than the reference, the run named baseline or else the first."""
    return Section(
        title="Summary",
        text=[*map(_sizes, runs), *(said for _, said in speedups(runs).values()), *_what_is_missing(runs)],
        table=DataTable(
            columns=["median of a step", *(run.name for run in runs)],
            rows=summary_rows({run.name: summarise(run.warm) for run in runs}),
            note=f"The first {WARM_UP_STEPS} steps of a run are left out where it has more.",
        ),
        headline=True,
    )


def speedups(runs: Sequence[Run]) -> dict[str, tuple[float | None, str]]:
    """For each run but the reference: how many times as fast, or None, and a sentence."""
    reference = next((run for run in runs if run.name == BASELINE), runs[0])
    found: dict[str, tuple[float | None, str]] = {}
    for run in runs:
        if run is reference:
            continue
        try:
            both = compare(run.steps, reference.steps)
        except MetadataError as error:
            found[run.name] = (None, f"{run.name} is not paired with {reference.name}: {error}.")
            continue
        found[run.name] = (
            both.speedup,
            f"Against {reference.name}, {run.name} is {both.said()}; median over {len(both.steps)} steps.",
        )
    return found


def group_json(title: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The group's figures, JSON-ready."""
    return {
        "name": title,
        "runs": {run.name: {"steps": len(run.steps), **summarise(run.warm).to_json()} for run in runs},
        "speedup": {name: None if factor is None else round(factor, 4) for name, (factor, _) in speedups(runs).items()},
    }


def _sizes(run: Run) -> str:
    tokens = sum(step.tokens for step in run.steps)
    samples = sum(step.samples for step in run.steps)
    return (
        f"{run.name}: {number_of(len(run.steps), 'step')}, {number_of(samples, 'sample')}, {tokens:,} tokens, "
        f"{number_of(run.ranks, 'rank')}; {run.folder}"
    )


def _what_is_missing(runs: Sequence[Run]) -> list[str]:
    """How to get the run a lone one is compared with."""
    switches = {"balanced": "balance.mode=off loader.mode=central", BASELINE: "balance.mode=on"}
    lone = runs[0].folder.name
    if len(runs) > 1 or lone not in switches:
        return []
    name = runs[0].settings.get("name", runs[0].folder.resolve().parent.name)
    return [f"Nothing to compare with: train the same with {switches[lone]} name={name}."]


def _left_out(runs: Sequence[Run]) -> Section:
    listed = [(run.name, one) for run in runs for one in run.left_out]
    rows = [
        [name, "before the run" if one.step is None else str(one.step), one.sample_id, one.reason, one.replacement]
        for name, one in listed[:_BAD_SHOWN]
    ]
    more = (
        f"{_BAD_SHOWN} of {len(listed)}; bad_samples.json and left_out.json list all."
        if len(listed) > _BAD_SHOWN
        else ""
    )
    return Section(
        title="Bad samples",
        text=[
            f"{number_of(len(listed), 'sample')} not trained on." if listed else "None: every sample was trained on."
        ],
        table=DataTable(columns=["run", "step", "sample", "reason", "replaced by"], rows=rows, note=more)
        if rows
        else None,
    )


def _settings(runs: Sequence[Run]) -> Section:
    """All settings, those in which the runs differ first."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    if not names:
        return Section(title="Settings", text=["No config.yaml was found beside the steps."])
    values = {name: [_shown(name, run.settings.get(name, "–")) for run in runs] for name in names}
    differing = [name for name in names if len(set(values[name])) > 1]
    ordered = [*differing, *(name for name in names if name not in differing)]
    said = f"The runs differ in {len(differing)} of {len(names)} settings, listed first." if len(runs) > 1 else ""
    return Section(
        title="Settings",
        text=[said] if said else [],
        table=DataTable(
            columns=["setting", *(run.name for run in runs)],
            rows=[[name, *values[name]] for name in ordered],
            marked=frozenset(range(len(differing))),
        ),
    )


def _shown(name: str, value: str) -> str:
    return "(hidden)" if name.endswith(_SECRET) and value not in ("null", "–") else value
