"""Packs a metadata table into balanced mini-batches, and tells what they gain. Loads no model and no torch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from trimtab.cli.architecture_argument import architecture_help, check_made_for, load_architecture
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import load_cluster
from trimtab.cost.flops import FORWARD, TRAIN_RECOMPUTE, Passes
from trimtab.cost.memory import language_bytes_per_token, vision_bytes_per_patch
from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.lower_bound import lower_bound
from trimtab.planning.packing.metrics import Spread, pad_ratio
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.plain_batches import random_batches
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.sample_loads import PATCHES_PER_TILE, DeviceLoads, SampleLoads
from trimtab.planning.packing.settings import PackMethod, PackSettings
from trimtab.planning.packing.step_time import PackingGain, deal, deal_in_order, dist_by_load, packing_gain
from trimtab.planning.packing.thresholds import choose_caps
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.number_of import number_of
from trimtab.schema.table_file import read_table

_OVERSIZED_SHOWN = 20
_CLUSTER = "h800"  # whose devices predicted times are of; ratios hardly depend on it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    defaults = PackSettings()
    parser.add_argument("table", metavar="META", help="metadata table of `trimtab scan`, or a flat table")
    parser.add_argument(
        "--tiles", type=int, metavar="N", help=f"cap on a pack's vision load, in tiles of {PATCHES_PER_TILE} patches"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="cap on a pack's tokens, text and visual; without --tiles and --tokens both are chosen from the data",
    )
    parser.add_argument(
        "--method", choices=get_args(PackMethod), default=defaults.method, help=f"(default: {defaults.method})"
    )
    parser.add_argument("--dp", default="8,32", metavar="N,N", help="data-parallel ranks to report (default: 8,32)")
    parser.add_argument(
        "--window", type=int, default=defaults.window, help=f"steps matched together (default: {defaults.window})"
    )
    parser.add_argument(
        "--pool", type=int, default=defaults.pool, help=f"samples packed together (default: {defaults.pool})"
    )
    parser.add_argument(
        "--batch", type=int, default=4, metavar="N", help="samples of the plain batches to compare with (default: 4)"
    )
    parser.add_argument("--model", metavar="NAME", help=f"for predicted cost: {architecture_help()}")
    parser.add_argument("--seed", type=int, default=0, help="of order and packs (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The parsed arguments and the data they name."""

    batch: BatchMetadata
    samples: SampleLoads
    architecture: Architecture | None
    settings: PackSettings
    ranks: tuple[int, ...]
    plain_batch: int
    seed: int


def run(args: argparse.Namespace) -> int:
    """Pack, compare with plain batches, print.

    Raises:
        TrimtabError: an argument, the model or the table is bad.
    """
    with Console(file=sys.stderr).status("packing"):
        job = _job(args)
        result = _result(job, *_caps(args, job))
    if args.json:
        print(json.dumps(result))
    else:
        _print(result, Console())
    return 0


def _job(args: argparse.Namespace) -> _Job:
    for name, least in (("tiles", 1), ("tokens", 1), ("batch", 1), ("seed", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value} must be at least {least}")
    settings = PackSettings(method=args.method, pool=args.pool, window=args.window)
    ranks = _ranks(args.dp)
    architecture = None if args.model is None else load_architecture(args.model)
    table = read_table(args.table)
    if architecture is not None:
        check_made_for(table, architecture)
    batch = table.batch()
    return _Job(
        batch=batch,
        samples=_samples(batch, architecture, TRAIN_RECOMPUTE),
        architecture=architecture,
        settings=settings,
        ranks=ranks,
        plain_batch=args.batch,
        seed=args.seed,
    )


def _samples(batch: BatchMetadata, architecture: Architecture | None, passes: Passes) -> SampleLoads:
    if architecture is None:
        return SampleLoads.from_batch(batch, None)
    device = load_cluster(_CLUSTER).device
    costs = analytic_costs(batch, architecture, device, language_passes=passes, vision_passes=passes)
    return SampleLoads.from_batch(batch, costs)


def _ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = tuple(int(word) for word in text.split(","))
    except ValueError:
        ranks = ()
    if not ranks or min(ranks) < 1:
        raise SettingsError(f"--dp {text!r} must be numbers from 1, separated by commas: 8,32")
    return ranks


def _caps(args: argparse.Namespace, job: _Job) -> tuple[int | None, int | None]:
    """Caps on patches and tokens, as asked for or chosen from the data."""
    if args.tiles is None and args.tokens is None:
        choice = choose_caps(
            job.samples, batch=job.plain_batch, ranks=job.ranks[0], settings=job.settings, seed=job.seed
        )
        return choice.patches if job.samples.patches.any() else None, choice.tokens
    return None if args.tiles is None else args.tiles * PATCHES_PER_TILE, args.tokens


def _result(job: _Job, patches: int | None, tokens: int | None) -> dict[str, Any]:
    problem = job.samples.problem(patches=patches, tokens=tokens)
    oversized = problem.oversized().tolist()
    if len(oversized) == len(problem):
        raise InfeasibleError(
            f"no pack can hold any of the {len(problem)} samples; sample {job.batch.sample_ids[oversized[0]]}: "
            f"{_why(problem, oversized[0])}; raise the caps"
        )
    started = time.perf_counter()
    packs = pack_epoch(problem, job.settings, seed=job.seed, epoch=0)
    bound = lower_bound(problem.loads[:, problem.capped][problem.fitting()], problem.limits)
    loads = job.samples.of_packs(packs)
    groups = {ranks: deal(loads, ranks, job.settings, np.random.default_rng([job.seed, ranks])) for ranks in job.ranks}
    seconds = time.perf_counter() - started
    packed = job.samples.take(np.sort(packs.rows))
    return {
        "method": job.settings.method,
        "samples": len(job.samples),
        "packs": len(packs),
        "lower_bound": bound,
        "pad_ratio": pad_ratio(_as_sequences(packs), packs.sums(job.samples.tokens)),
        "dist_ratio": {str(ranks): dist_by_load(loads, groups[ranks]) for ranks in job.ranks},
        "oversized": [job.batch.sample_ids[row] for row in oversized],
        "unused_samples": len(job.samples) - len(packs.rows),
        "seconds": round(seconds, 3),
        "caps": {"tiles": None if patches is None else patches / PATCHES_PER_TILE, "tokens": tokens},
        "window": job.settings.window if job.settings.method == "best" else None,
        "padding_packs": {str(ranks): int(groups[ranks].zero_loss.sum()) for ranks in job.ranks},
        "spread": _spreads(job, packs),
        "plain": _plain(job, packed),
        "gain": {str(ranks): _gain(job, packs, ranks) for ranks in job.ranks},
        "oversized_reasons": [_why(problem, row) for row in oversized],
    }


def _as_sequences(packs: Packs) -> Packs:
    """A pack is one sequence to its device."""
    return Packs(rows=np.arange(len(packs), dtype=np.int64), offsets=np.arange(len(packs) + 1, dtype=np.int64))


def _plain(job: _Job, packed: SampleLoads) -> dict[str, Any]:
    """Pad and dist ratios of plain random batches of the samples that are packed; None where they fill no step."""
    batches = random_batches(len(packed), job.plain_batch, np.random.default_rng([job.seed, 0]))
    loads = packed.of_padded(batches)
    return {
        "batch": job.plain_batch,
        "pad_ratio": pad_ratio(batches, packed.tokens) if len(batches) else None,
        "dist_ratio": {
            str(ranks): dist_by_load(loads, deal_in_order(len(batches), ranks))
            if len(batches) >= ranks
            else dict.fromkeys(("vision", "language", "cost"))
            for ranks in job.ranks
        },
    }


def _why(problem: PackProblem, row: int) -> str:
    """What a sample exceeds, vision in tiles as the caps are given."""
    return " and ".join(
        f"tiles={load / PATCHES_PER_TILE:g} exceeds its cap of {cap / PATCHES_PER_TILE:g}"
        if name == "patches"
        else f"{name}={load} exceeds its cap of {cap}"
        for name, load, cap in problem.exceeded(row)
    )


def _gain(job: _Job, packs: Packs, ranks: int) -> dict[str, Any] | None:
    if len(packs.rows) < job.plain_batch * ranks:
        return None
    gain: PackingGain = packing_gain(
        job.samples, packs, batch=job.plain_batch, ranks=ranks, settings=job.settings, seed=job.seed
    )
    return {"gain": gain.gain, "unit": gain.unit, "pays": gain.pays, "says": str(gain)}


def _spreads(job: _Job, packs: Packs) -> dict[str, Any]:
    """Mean and standard deviation of what a device runs at once, in plain batches ("before") and packs ("after")."""
    every = _samples(job.batch, job.architecture, FORWARD)
    samples = every.take(np.sort(packs.rows))
    batches = random_batches(len(samples), job.plain_batch, np.random.default_rng([job.seed, 0]))
    both = {"before": samples.of_padded(batches), "after": every.of_packs(packs)}
    return {when: _spread(loads, job.architecture) if len(loads.language) else None for when, loads in both.items()}


def _spread(loads: DeviceLoads, architecture: Architecture | None) -> dict[str, Any]:
    columns: dict[str, NDArray[Any]] = {"tiles": loads.vision / PATCHES_PER_TILE, "tokens": loads.language}
    if loads.cost is not None and architecture is not None:
        columns["forward_ms"] = loads.cost * 1e-6
        held = loads.language * language_bytes_per_token(architecture.language, recompute=False)
        if architecture.vision is not None:
            held = held + loads.vision * vision_bytes_per_patch(architecture.vision, recompute=False)
        columns["activation_gib"] = held / 2**30
    return {name: asdict(Spread.of(column)) for name, column in columns.items()}


def _print(result: dict[str, Any], console: Console) -> None:
    caps = result["caps"]
    limits = ", ".join(f"{value:g} {name}" for name, value in caps.items() if value is not None)
    used, left_out = result["samples"] - result["unused_samples"], result["unused_samples"]
    source = (
        f"{used:,} of {number_of(result['samples'], 'sample')} ({left_out:,} left out)"
        if left_out
        else number_of(used, "sample")
    )
    console.print(
        f"{result['packs']:,} packs of at most {limits} from {source} by "
        f"{result['method']!r}, {_over(result)} the lower bound of {result['lower_bound']:,}; {result['seconds']:.1f} s"
    )
    console.print(_ratio_table(result))
    console.print(_spread_table(result))
    for ranks, gain in result["gain"].items():
        console.print(f"{number_of(int(ranks), 'rank')}: {gain['says'] if gain else 'too few samples to compare'}")
    if result["oversized"]:
        console.print(f"left out, as no pack can hold it: {number_of(len(result['oversized']), 'sample')}")
        for sample, reason in list(zip(result["oversized"], result["oversized_reasons"], strict=True))[
            :_OVERSIZED_SHOWN
        ]:
            console.print(f"  {sample}: {reason}", markup=False)
        if len(result["oversized"]) > _OVERSIZED_SHOWN:
            console.print("  …; --json lists them all")


def _over(result: dict[str, Any]) -> str:
    return f"{result['packs'] / max(1, result['lower_bound']) - 1:.2%} above"


def _ratio_table(result: dict[str, Any]) -> Table:
    table = Table(
        box=box.SIMPLE, title="share of time ranks wait, and of tokens that are padding", title_justify="left"
    )
    for name in ("ranks", "", "padding", "vision", "language", "cost"):
        table.add_column(name, justify="left" if name == "" else "right")
    rows = ((f"random batches of {result['plain']['batch']}", result["plain"]), ("packs", result))
    for ranks in result["dist_ratio"]:
        for label, source in rows:
            ratios = source["dist_ratio"][ranks].values()
            table.add_row(ranks, label, *map(_ratio, (source["pad_ratio"], *ratios)))
    return table


def _spread_table(result: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, title="what a device runs at once, mean ± deviation", title_justify="left")
    for name in ("", "random batches", "packs"):
        table.add_column(name, justify="right" if name else "left")
    spreads = result["spread"]
    for name in spreads["after"]:
        shown = [
            f"{spread[name]['mean']:,.1f} ± {spread[name]['sd']:,.1f}" if spread else "–"
            for spread in (spreads["before"], spreads["after"])
        ]
        table.add_row(name.replace("_", " "), *shown)
    return table


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
