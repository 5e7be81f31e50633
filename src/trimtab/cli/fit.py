"""Fits the language model's cost to recorded steps and writes coefficients for `trimtab plan --cost` and training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from trimtab.cost.fit import TERMS, FittedCost, MeasuredStep, fit
from trimtab.cost.rank_work import RankWork
from trimtab.errors import MetadataError, SettingsError

_PHASE = "language"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("steps", nargs="+", metavar="STEPS", help="steps.jsonl of a run, or a run's folder")
    parser.add_argument("--out", metavar="FILE", help="JSON file to write the coefficients to")
    parser.add_argument(
        "--terms", default=",".join(TERMS), help=f"terms to fit, the others held at zero (default: {','.join(TERMS)})"
    )
    parser.add_argument("--skip-first", type=int, default=2, metavar="N", help="cold steps to leave out of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Read, fit, write, print.

    Raises:
        TrimtabError: a file or argument is bad, or the steps cannot identify a term.
    """
    if args.skip_first < 0:
        raise SettingsError(f"--skip-first {args.skip_first} must not be negative")
    runs = [_rows(Path(path)) for path in args.steps]
    warm = [row for rows in runs for row in rows[args.skip_first :]]
    terms = tuple(term.strip() for term in args.terms.split(",") if term.strip())
    outcome = fit([_measured(row, where) for where, row in warm], skip_first=0, terms=terms)
    result = {**outcome.to_json(), "skipped": sum(min(args.skip_first, len(rows)) for rows in runs)}
    result["rank_error"] = _rank_error([row for _, row in warm])
    if args.out:
        _write(Path(args.out), result)
    if args.json:
        print(json.dumps(result))
    else:
        _print(outcome, result)
    return 0


def _rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every line."""
    path = path / "steps.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise MetadataError(f"{path}: no such file; `trimtab train` writes steps.jsonl into its run folder")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise MetadataError(f"{where}: not JSON ({error}); remove the line") from error
        if not isinstance(row, Mapping):
            raise MetadataError(f"{where}: holds no JSON object; remove the line")
        rows.append((where, row))
    return rows


def _measured(row: Mapping[str, Any], where: str) -> MeasuredStep:
    """The work of a step's ranks and the time of its language phase on the slowest."""
    work, phases = row.get("rank_work"), row.get("phases_ms")
    if not isinstance(work, Mapping):
        raise MetadataError(f"{where}: holds no rank_work; record the run again with this version")
    times = phases.get(_PHASE) if isinstance(phases, Mapping) else None
    if not isinstance(times, list) or not times or not all(isinstance(time, int | float) for time in times):
        raise MetadataError(f"{where}: phases_ms.{_PHASE} must list a time for each rank, found {times!r}")
    try:
        return MeasuredStep(work=RankWork.from_json(work), slowest_ms=float(max(times)))
    except MetadataError as error:
        raise MetadataError(f"{where}: {error}") from error


def _rank_error(rows: list[Mapping[str, Any]]) -> float | None:
    """How far ranks' shares of a step as predicted were from those measured: median of |predicted / measured - 1|."""
    errors: list[float] = []
    for row in rows:
        predicted = np.array(row.get("predicted_rank_ms") or [], dtype=np.float64)
        measured = np.array(row.get("rank_ms") or [], dtype=np.float64)
        if len(predicted) == len(measured) > 0 and predicted.sum() > 0 and (measured > 0).all():
            errors += np.abs(predicted / predicted.sum() / (measured / measured.sum()) - 1).tolist()
    return float(np.median(errors)) if errors else None


def _write(path: Path, result: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--out {path}: cannot be written ({error})") from error


def _print(outcome: FittedCost, result: Mapping[str, Any]) -> None:
    values = {**outcome.language.to_json(), "intercept": outcome.intercept_ms}
    units = {"a": "ns per squared token", "b": "ns per token", "c": "ns per sequence", "intercept": "ms per step"}
    console = Console()
    for term in TERMS:
        error = outcome.standard_errors.get(term)
        spread = "held at zero" if error is None else f"± {error:.3g}"
        console.print(f"{term:<10} {values[term]:>12.6g} {spread:<14} {units[term]}", highlight=False)
    console.print(
        f"{outcome.steps} steps, {result['skipped']} cold ones left out: median error {outcome.median_error:.1%}, "
        f"R squared {outcome.r_squared:.3f}",
        highlight=False,
        soft_wrap=True,
    )
    if result["rank_error"] is not None:
        console.print(
            f"while these steps ran, predicted shares of the ranks were off by {result['rank_error']:.1%} (median)",
            highlight=False,
            soft_wrap=True,
        )
