"""Plans every batch of a metadata table under each strategy, and compares them. Loads no model and no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from trimtab.cli.architecture_argument import architecture_help, check_made_for, load_architecture
from trimtab.cli.plan_room import DeviceRoom
from trimtab.cli.plan_rows import CostModel, Job, strategy_row
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster, cluster_presets, load_cluster
from trimtab.cost.embedding_exchange import embedding_exchange
from trimtab.cost.flops import TRAIN_RECOMPUTE
from trimtab.cost.memory import largest_micro_batch
from trimtab.cost.polynomial import PolynomialCost, polynomial_costs
from trimtab.cost.sharding import ExchangeCost, with_degrees
from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.explain import explain
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.strategies import STRATEGIES, strategy_named
from trimtab.planning.workloads import MIXES, generated_batch
from trimtab.report.whole_table import print_whole
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.table_file import read_table

_DEFAULT_CLUSTER = "h800"
_DEMO = {"ranks": 32, "batch_size": 256, "model": "mimo-vl-7b"}
_DEMO_MIX = "video-heavy"
_MOST_RANKS, _MOST_DEMO = 65_536, 2**18  # planned within minutes
_DEMO_BATCHES = 4
_NOTHING_FITS = 1  # exit code; 2 is bad input's
_SHOWN = ("step_ratio", "bound_ratio", "attention_ratio", "attention_floor", "vision_ratio", "token_ratio")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("table", nargs="?", metavar="META", help="metadata table of `trimtab scan`, or a flat table")
    parser.add_argument("--ranks", type=int, metavar="N", help="data-parallel ranks")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples in an optimizer step, over all ranks")
    parser.add_argument("--model", metavar="NAME", help=architecture_help())
    parser.add_argument(
        "--strategy", nargs="+", metavar="NAME", default=list(STRATEGIES), help=f"of: {', '.join(STRATEGIES)}"
    )
    parser.add_argument(
        "--sync", choices=["step", "micro_batch", "layer"], default="layer", help="where ranks meet (default: layer)"
    )
    parser.add_argument("--micro-batch-tokens", type=int, metavar="N", help="most tokens of a rank's micro-batch")
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help=f"YAML file, or: {', '.join(cluster_presets())}; caps micro-batches by device memory "
        f"with recompute=true and dtype=bfloat16 (default: {_DEFAULT_CLUSTER} without that cap)",
    )
    parser.add_argument("--cost", metavar="FILE", help="coefficients written by `trimtab fit`, for the language model")
    parser.add_argument(
        "--max-degree", type=int, default=8, metavar="N", help="largest sequence-parallel degree (default: 8)"
    )
    parser.add_argument(
        "--objective",
        choices=["time", "attention"],
        default="time",
        help="what `adaptive` makes least: predicted step time (default), or the attention ratio",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=ExchangeCost().overlap,
        metavar="SHARE",
        help=f"share of the all-to-all of sharded samples that computing hides (default: {ExchangeCost().overlap})",
    )
    parser.add_argument(
        "--demo",
        nargs="?",
        const=_DEMO_MIX,
        choices=list(MIXES),
        metavar="MIX",
        help=f"plan generated lengths instead of a table: {', '.join(MIXES)} (default: {_DEMO_MIX})",
    )
    parser.add_argument("--explain", action="store_true", help="say what holds the slowest rank of each strategy up")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Plan, compare, print.

    Returns:
        Exit code: 0, or 1 where every strategy is infeasible.

    Raises:
        TrimtabError: an argument, the model, the cluster or the table is bad.
    """
    if args.demo:
        for name, value in _DEMO.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
    _check(args)
    strategies = list(dict.fromkeys(args.strategy))
    architecture = load_architecture(args.model)
    cluster = load_cluster(args.cluster or _DEFAULT_CLUSTER)
    cluster.nodes_of(args.ranks)
    batches = _batches(args, architecture)
    job = Job(
        architecture=architecture,
        costs=_cost_model(args, architecture, cluster),
        ranks=args.ranks,
        settings=PlanSettings(
            sync=args.sync,
            max_tokens_per_micro_batch=args.micro_batch_tokens,
            max_degree=args.max_degree,
            ranks_per_node=cluster.ranks_per_node,
            objective=args.objective,
        ),
    )
    fits = None if args.cluster is None else _tokens_that_fit(architecture, cluster, args.ranks)
    try:
        cap = _micro_batch_cap(args, architecture, cluster, fits)
    except InfeasibleError as error:  # so is every strategy
        rows = [{"name": name, "infeasible": str(error)} for name in strategies]
    else:
        job = replace(job, settings=replace(job.settings, max_tokens_per_micro_batch=cap))
        room = None if cap == args.micro_batch_tokens else DeviceRoom(architecture, cluster, args.ranks)
        rows = list(_rows(job, batches, strategies, room))
    result = {
        "ranks": args.ranks,
        "batch_size": args.batch_size,
        "batches": len(batches),
        "model": architecture.name,
        "sync": args.sync,
        "max_tokens_per_micro_batch": job.settings.max_tokens_per_micro_batch,
        "tokens_that_fit": fits,
        "strategies": rows,
    }
    if args.json:
        print(json.dumps(result))
    else:
        _print(result)
    if args.explain:
        _explain(job, batches, [row["name"] for row in rows if "infeasible" not in row])
    return 0 if any("infeasible" not in row for row in rows) else _NOTHING_FITS


def _check(args: argparse.Namespace) -> None:
    if args.demo is None and args.table is None:
        raise SettingsError("give a metadata table, or --demo; see `trimtab plan --help`")
    if args.demo is not None and args.table is not None:
        raise SettingsError(f"--demo plans generated lengths, so {args.table} would be ignored; leave one out")
    for name in ("ranks", "batch_size", "model"):
        flag = "--" + name.replace("_", "-")
        value = getattr(args, name)
        if value is None:
            raise SettingsError(f"{flag} is missing; see `trimtab plan --help`")
        if isinstance(value, int) and value < 1:
            raise SettingsError(f"{flag} {value} must be at least 1")
    for flag, value, most in (("--ranks", args.ranks, _MOST_RANKS), ("--batch-size", args.batch_size, _MOST_DEMO)):
        if value > most and (flag == "--ranks" or args.demo):
            raise SettingsError(f"{flag} {value:,} must be at most {most:,}; lower it")
    for strategy in args.strategy:
        strategy_named(strategy)


def _batches(args: argparse.Namespace, architecture: Architecture) -> list[BatchMetadata]:
    """Consecutive batches of the table, the last one possibly short."""
    if args.demo:
        return [generated_batch(args.demo, args.batch_size, seed) for seed in range(_DEMO_BATCHES)]
    table = read_table(args.table)
    check_made_for(table, architecture)
    return [
        table.batch(np.arange(start, min(start + args.batch_size, len(table)), dtype=np.int64))
        for start in range(0, len(table), args.batch_size)
    ]


def _cost_model(args: argparse.Namespace, architecture: Architecture, cluster: Cluster) -> CostModel:
    """Costs at every degree: analytic on the cluster's devices, or fitted for the language model."""
    whole = _whole_costs(args, architecture, cluster)
    exchange = ExchangeCost(overlap=args.overlap)
    embeddings = embedding_exchange(architecture, cluster, args.ranks)

    def at_every_degree(batch: BatchMetadata) -> Costs:
        return with_degrees(
            replace(whole(batch), exchange=embeddings),
            batch.tokens,
            architecture.language,
            cluster,
            args.ranks,
            max_degree=args.max_degree,
            passes=TRAIN_RECOMPUTE,
            exchange=exchange,
        )

    return at_every_degree


def _whole_costs(args: argparse.Namespace, architecture: Architecture, cluster: Cluster) -> CostModel:
    """Costs of whole samples."""

    def analytic(batch: BatchMetadata) -> Costs:
        return analytic_costs(
            batch, architecture, cluster.device, language_passes=TRAIN_RECOMPUTE, vision_passes=TRAIN_RECOMPUTE
        )

    if args.cost is None:
        return analytic
    path = Path(args.cost)
    if not path.is_file():
        raise SettingsError(f"--cost {path}: no such file; write it with `trimtab fit --out`")
    try:
        language = PolynomialCost.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SettingsError(f"--cost {path}: {error}; write it with `trimtab fit --out`") from error
    return lambda batch: polynomial_costs(batch, language, analytic(batch).vision_frame_ns)


def _tokens_that_fit(architecture: Architecture, cluster: Cluster, ranks: int) -> dict[str, Any]:
    """Largest micro-batch of a device with and without recomputation; plans are of the first, as their costs are."""
    with_it, without = (
        largest_micro_batch(architecture, cluster.device_memory, ranks, recompute=recompute)
        for recompute in (True, False)
    )
    return {"recompute": with_it, "no_recompute": without, "dtype": "bfloat16"}


def _micro_batch_cap(
    args: argparse.Namespace, architecture: Architecture, cluster: Cluster, fits: dict[str, Any] | None
) -> int | None:
    """The smaller of what was asked for and what the named cluster's devices hold with recomputation."""
    asked: int | None = args.micro_batch_tokens
    if fits is None:
        return asked
    held = int(fits["recompute"])
    if held == 0:
        raise InfeasibleError(
            f"{architecture.name}, fully sharded over {args.ranks} ranks, leaves no room on devices of "
            f"{cluster.device_memory / 1e9:.0f} GB; use more ranks or larger devices"
        )
    return held if asked is None else min(asked, held)


def _rows(
    job: Job, batches: list[BatchMetadata], strategies: list[str], room: DeviceRoom | None
) -> Iterator[dict[str, Any]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("planning", total=len(batches) * len(strategies))
        for strategy in strategies:
            progress.update(task, description=strategy)
            yield strategy_row(job, _counted(batches, progress, task), strategy, room)


def _counted(batches: list[BatchMetadata], progress: Progress, task: Any) -> Iterator[BatchMetadata]:
    for batch in batches:
        yield batch
        progress.advance(task)


def _print(result: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("strategy", no_wrap=True)
    for heading in (
        "step\nratio",
        "worst",
        "bound\nratio",
        "atten-\ntion",
        "its\nfloor",
        "vision",
        "token",
        "GB\nmoved",
        "plan\nms",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    refused = [row for row in result["strategies"] if "infeasible" in row]
    for row in result["strategies"]:
        if row in refused:
            table.add_row(row["name"], "-", *[""] * 8)
            continue
        means = [f"{row[name]['mean']:.3f}" for name in _SHOWN]
        figures = [f"{row['all_to_all_bytes'] / 1e9:.2f}", f"{row['planning_ms']['median']:.2f}"]
        table.add_row(row["name"], means[0], f"{row['step_ratio']['max']:.3f}", *means[1:], *figures)
    console = Console()
    count = result["batches"]
    console.print(
        f"{result['model']}: {count} batch{'es' if count > 1 else ''} of {result['batch_size']} on {result['ranks']} "
        f"ranks, sync={result['sync']}{_caps(result)}; means over batches, and the worst step ratio",
        highlight=False,
        soft_wrap=True,
    )
    print_whole(console, table)
    for row in refused:
        console.print(f"{row['name']} infeasible: {row['infeasible']}", highlight=False, markup=False, soft_wrap=True)


def _caps(result: dict[str, Any]) -> str:
    """The cap planned with, and what devices hold either way; nothing where there is no cap."""
    cap, fits = result["max_tokens_per_micro_batch"], result["tokens_that_fit"]
    said = f", micro-batches of at most {cap:,} tokens" if cap else ""
    if fits is None or fits["recompute"] == 0:
        return said
    either = f"{fits['recompute']:,} with recompute=true, {fits['no_recompute']:,} without; dtype={fits['dtype']}"
    return f"{said} (a device holds {either})"


def _explain(job: Job, batches: list[BatchMetadata], strategies: list[str]) -> None:
    """Explain each strategy's plan of the first batch, on standard error so that ``--json`` stays alone."""
    console = Console(file=sys.stderr)
    costs = job.costs(batches[0])
    for name in strategies:
        settings = replace(job.settings, strategy=name)
        plan = plan_step(batches[0], costs, job.ranks, settings)
        console.print(f"{name}, first batch", style="bold", highlight=False)
        for line in explain(plan, batches[0], costs, settings):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
