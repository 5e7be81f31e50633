"""Fits the language model's cost to recorded steps, or to packs timed here, for `trimtab plan --cost`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from trimtab.cost.fit import TERMS, FittedCost, fit
from trimtab.cost.observations import PhaseRecord, observations
from trimtab.cost.rank_work import RankWork
from trimtab.errors import MetadataError, SettingsError
from trimtab.report.prediction import RankError, rank_error
from trimtab.report.run_records import STEPS
from trimtab.schema.output_file import check_writable, write_output

_PHASE = "language"
_SWEEP_TOKENS = 4096

_Found = tuple[FittedCost, dict[str, Any], RankError | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("steps", nargs="*", metavar="STEPS", help="steps.jsonl, or folder of a run or of its variants")
    parser.add_argument("--sweep", action="store_true", help="time made-up packs on this machine, without a run")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="model of the sweep; random weights if it has none"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_SWEEP_TOKENS,
        metavar="N",
        help="fullest pack of the sweep (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="what the sweep computes in (default: float32)",
    )
    parser.add_argument("--out", metavar="FILE", help="JSON file to write the coefficients to")
    parser.add_argument(
        "--terms", default=",".join(TERMS), help=f"terms to fit, the others held at zero (default: {','.join(TERMS)})"
    )
    parser.add_argument("--skip-first", type=int, default=2, metavar="N", help="cold steps to leave out of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Read or measure, fit, write, print.

    Raises:
        TrimtabError: a file or argument is bad, or the steps cannot identify a term.
    """
    _check(args)
    terms = tuple(term.strip() for term in args.terms.split(",") if term.strip())
    outcome, result, error = _fit_sweep(args, terms) if args.sweep else _fit_recorded(args, terms)
    result["rank_error"] = error.median if error else None
    if args.out:
        write_output(args.out, json.dumps(result, indent=2) + "\n")
    if args.json:
        print(json.dumps(result))
    else:
        _print(outcome, result, "packs" if args.sweep else "steps")
        if error:
            Console().print(f"while these steps ran, {error}", highlight=False, soft_wrap=True)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.sweep == bool(args.steps):
        raise SettingsError("give either recorded STEPS or --sweep --model FOLDER")
    if args.sweep and args.model is None:
        raise SettingsError("--sweep needs --model FOLDER, the model to time")
    if args.model and not args.sweep:
        raise SettingsError("--model is for --sweep; recorded steps are of the model that ran")
    if args.skip_first < 0:
        raise SettingsError(f"--skip-first {args.skip_first} must not be negative")
    if args.out:
        check_writable(args.out, read=args.steps)


def _fit_recorded(args: argparse.Namespace, terms: tuple[str, ...]) -> _Found:
    runs = [_rows(file) for path in args.steps for file in _recorded_files(Path(path))]
    warm = [row for rows in runs for row in rows[args.skip_first :]]
    if not warm:
        raise MetadataError(
            f"{', '.join(args.steps)}: {sum(map(len, runs))} steps, of which the first {args.skip_first} of each run "
            "are left out as cold; record longer runs, or lower --skip-first"
        )
    outcome = fit(observations([_record(row, where) for where, row in warm]), skip_first=0, terms=terms)
    skipped = sum(min(args.skip_first, len(rows)) for rows in runs)
    result = {**outcome.to_json(), "steps": len(warm), "observations": outcome.steps, "skipped": skipped}
    return outcome, result, rank_error((row.get("predicted_rank_ms"), row.get("rank_ms")) for _, row in warm)


def _fit_sweep(args: argparse.Namespace, terms: tuple[str, ...]) -> _Found:
    from trimtab.training.sweep import sweep_model

    with Progress(console=Console(stderr=True), transient=True) as progress:
        steps = sweep_model(args.model, max_tokens=args.max_tokens, dtype=args.dtype, progress=progress)
    outcome = fit(steps, skip_first=0, terms=terms)
    return outcome, {**outcome.to_json(), "observations": outcome.steps}, None


def _recorded_files(path: Path) -> list[Path]:
    """The steps.jsonl named: a file, a run's, or those of its variants such as runs/demo/balanced."""
    if not path.is_dir() or (path / STEPS).exists():
        return [path / STEPS if path.is_dir() else path]
    return sorted(path.glob(f"*/{STEPS}")) or [path / STEPS]


def _rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every line."""
    if not path.is_file():
        raise MetadataError(f"{path}: no such file; `trimtab train` writes steps.jsonl into its run folder")
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MetadataError(f"{path}: not readable as text ({error}); give steps.jsonl of a run") from error
    for number, line in enumerate(lines, start=1):
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


def _record(row: Mapping[str, Any], where: str) -> PhaseRecord:
    """The language phase of a step: computing time where it was recorded, else wall time."""
    work = row.get("rank_work")
    if not isinstance(work, Mapping):
        raise MetadataError(f"{where}: holds no rank_work; record the run again with this version")
    name = "compute_ms" if row.get("compute_ms") else "phases_ms"
    phases = row.get(name)
    times = phases.get(_PHASE) if isinstance(phases, Mapping) else None
    if not isinstance(times, list) or not times or not all(isinstance(time, int | float) for time in times):
        raise MetadataError(f"{where}: {name}.{_PHASE} must list a time for each rank, found {times!r}")
    waiting = name == "phases_ms" or bool(row.get("compute_includes_waiting"))
    try:
        ranks = RankWork.from_json(work)
    except MetadataError as error:
        raise MetadataError(f"{where}: {error}") from error
    if len(times) != len(ranks.tokens):
        raise MetadataError(f"{where}: {name}.{_PHASE} has {len(times)} ranks, rank_work {len(ranks.tokens)}")
    return PhaseRecord(work=ranks, compute_ms=times, includes_waiting=waiting)


def _print(outcome: FittedCost, result: Mapping[str, Any], what: str) -> None:
    values = {**outcome.language.to_json(), "intercept": outcome.intercept_ms}
    units = {"a": "ns per squared token", "b": "ns per token", "c": "ns per sequence", "intercept": "ms per step"}
    console = Console()
    for term in TERMS:
        error = outcome.standard_errors.get(term)
        spread = "held at zero" if error is None else f"± {error:.3g}"
        console.print(f"{term:<10} {values[term]:>12.6g} {spread:<14} {units[term]}", highlight=False)
    console.print(
        f"{result['steps']} {what}, {result['skipped']} cold ones left out: median error {outcome.median_error:.1%}, "
        f"R squared {outcome.r_squared:.3f}",
        highlight=False,
        soft_wrap=True,
    )
