"""The list of bad samples that ends a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.schema.number_of import number_of
from trimtab.training.run_folder import BAD_SAMPLES

_SAMPLES_SHOWN, _STEPS_SHOWN = 20, 3


def bad_sample_lines(bad: Sequence[dict[str, Any]], *, what: str, outcome: str, steps: int) -> list[str]:
    """What a user is told: a line a sample, however often it was met; none where all could be loaded.

    Args:
        bad: entries of ``bad_samples.json``.
        what: "sample" or "prompt".
        outcome: what became of their steps.
        steps: of the whole run.
    """
    met: dict[str, list[dict[str, Any]]] = {}
    for entry in bad:
        met.setdefault(entry["sample_id"], []).append(entry)
    if not met:
        return []
    head = f"{number_of(len(met), what)} could not be loaded and {outcome}, {number_of(len(bad), 'time')} in all:"
    shown = list(met.items())[:_SAMPLES_SHOWN]
    lines = [f"  {name}: {entries[0]['reason']}; {_steps(entries, steps)}" for name, entries in shown]
    more = [f"  and {len(met) - len(shown)} more, see {BAD_SAMPLES}"] if len(met) > len(shown) else []
    return [head, *lines, *more]


def _steps(entries: Sequence[dict[str, Any]], steps: int) -> str:
    told = [f"step {entry['step']} ({_replacement(entry, steps)})" for entry in entries[:_STEPS_SHOWN]]
    more = len(entries) - len(told)
    return ", ".join([*told, *([f"and {number_of(more, 'step')} more"] if more else [])])


def _replacement(entry: dict[str, Any], steps: int) -> str:
    joins = f"{entry['replacement']} joins step {entry['joins_step']}"
    if entry["joins_step"] < steps:
        return joins
    return f"{joins} if the run is resumed with more than {entry['joins_step']} steps"
