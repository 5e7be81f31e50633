"""Cuts a model into pipeline stages and chooses which layers recompute, and compares. Loads no model and no torch."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.table import Table

from trimtab.cli.architecture_argument import architecture_help, load_architecture
from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster, cluster_presets, load_cluster
from trimtab.cost.layer_profile import MicroBatch, layer_profile
from trimtab.errors import SettingsError
from trimtab.planning.explain_stages import explain_stages
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stages import plan_peers, plan_stages
from trimtab.report.whole_table import print_whole
from trimtab.schema.number_of import number_of
from trimtab.schema.stages import LayerProfile, Schedule, StagePlan

_TILES = 18
_GB = 1e9
_MOST = {"stages": 1024, "microbatches": 4096, "tiles": 10**6, "tokens": 10**8, "optimizer_shards": 10**6, "chunks": 64}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--model", required=True, metavar="NAME", help=architecture_help())
    parser.add_argument("--stages", type=int, required=True, metavar="N", help="pipeline ranks")
    parser.add_argument("--microbatches", type=int, required=True, metavar="N", help="micro-batches of a step")
    parser.add_argument(
        "--memory-gb", type=float, required=True, metavar="GB", help="cap of every rank, 1 GB = 1e9 bytes"
    )
    parser.add_argument(
        "--tiles",
        type=int,
        metavar="N",
        help=f"images of 32x32 patches in a micro-batch (default: {_TILES}; 0 for a text model)",
    )
    parser.add_argument(
        "--tokens", type=int, default=6016, metavar="N", help="its tokens, visual ones included (default: 6016)"
    )
    parser.add_argument(
        "--optimizer-shards",
        type=int,
        default=8,
        metavar="N",
        help="data-parallel ranks that share 12 bytes of optimizer state a parameter; 4 bytes of bf16 weight and "
        "gradient stay on their stage (default: 8)",
    )
    parser.add_argument(
        "--cluster",
        default="a100",
        metavar="NAME",
        help=f"YAML file, or: {', '.join(cluster_presets())} (default: a100)",
    )
    parser.add_argument(
        "--schedule", choices=get_args(Schedule), default="1f1b", help="order of forwards and backwards (default: 1f1b)"
    )
    parser.add_argument("--chunks", type=int, metavar="N", help="stages of each rank when interleaved (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Plan, compare, print.

    Raises:
        TrimtabError: an argument, the model or the cluster is bad, or nothing fits.
    """
    _check(args)
    architecture, cluster = load_architecture(args.model), load_cluster(args.cluster)
    with Console(file=sys.stderr).status("planning stages"):
        profile = _profile(args, architecture, cluster)
        problem = StageProblem(
            profile=profile,
            ranks=args.stages,
            micro_batches=args.microbatches,
            memory_bytes=round(args.memory_gb * _GB),
            schedule=args.schedule,
            chunks=_chunks(args),
        )
        plan = plan_stages(problem)
        peers = plan_peers(problem, plan.lower_bound_ns)
    if args.json:
        print(json.dumps(_result(plan, peers)))
    else:
        _print(f"{architecture.name} on {cluster.name}", plan, peers, profile)
    return 0


def _check(args: argparse.Namespace) -> None:
    least = {"tiles": 0}
    for name, most in _MOST.items():
        value = getattr(args, name)
        flag = "--" + name.replace("_", "-")
        if value is not None and value < least.get(name, 1):
            raise SettingsError(f"{flag} {value} must be at least {least.get(name, 1)}")
        if value is not None and value > most:
            raise SettingsError(f"{flag} {value} must be at most {most}")
    if not 1e-9 <= args.memory_gb <= 1e9:
        raise SettingsError(f"--memory-gb {args.memory_gb:g} must be a positive number of gigabytes, up to 1e9")
    if args.chunks is not None and args.schedule == "1f1b":
        raise SettingsError("--chunks is for --schedule interleaved; 1f1b has one stage a rank")


def _chunks(args: argparse.Namespace) -> int:
    default = 1 if args.schedule == "1f1b" else 2
    return default if args.chunks is None else int(args.chunks)


def _profile(args: argparse.Namespace, architecture: Architecture, cluster: Cluster) -> LayerProfile:
    """Stages are neighbours in a node if all data-parallel copies of the pipeline are, else across nodes."""
    ranks = args.stages * args.optimizer_shards
    link = cluster.node if cluster.nodes_of(ranks) == 1 else cluster.across
    tiles = args.tiles
    if tiles is None:
        tiles = 0 if architecture.vision is None else _TILES
    return layer_profile(
        architecture,
        cluster.device,
        MicroBatch.of_pack(args.tokens, tiles),
        link,
        optimizer_shards=args.optimizer_shards,
    )


def _result(plan: StagePlan, peers: dict[str, StagePlan]) -> dict[str, Any]:
    return {
        "stages": plan.ranks,
        "bounds": list(plan.bounds),
        "recompute": [list(rows) for rows in plan.recompute],
        "predicted_step_ms": plan.step_ns * 1e-6,
        "bubble": plan.bubble,
        "peak_memory_gb": _peaks(plan),
        "baselines": {
            name: {"predicted_step_ms": peer.step_ns * 1e-6, "peak_memory_gb": _peaks(peer), "fits": peer.fits}
            for name, peer in peers.items()
        },
    }


def _peaks(plan: StagePlan) -> list[float]:
    return [memory.peak / _GB for memory in plan.memory]


def _print(what: str, plan: StagePlan, peers: dict[str, StagePlan], profile: LayerProfile) -> None:
    console = Console()
    console.print(
        f"{what}: {len(profile)} layers, {number_of(plan.ranks, 'rank')}, "
        f"{number_of(plan.micro_batches, 'micro-batch', 'micro-batches')}, {plan.schedule}, "
        f"cap {plan.memory_bytes / _GB:g} GB; predicted",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in ("step\nms", "idle", "peak\nGB", "recom-\nputing", "first layer of each stage"):
        table.add_column(heading, justify="left" if heading.startswith("first") else "right")
    for each in (plan, *peers.values()):
        table.add_row(
            each.method,
            f"{each.step_ns * 1e-6:,.1f}" + ("" if each.fits else " *"),
            f"{each.bubble:.1%}",
            f"{max(_peaks(each)):.1f}",
            " ".join(str(len(rows)) for rows in each.recompute),
            " ".join(profile.names[bound] for bound in each.bounds[:-1]),
        )
    print_whole(console, table)
    if not all(each.fits for each in peers.values()):
        console.print("* does not fit, even recomputing every layer")
    for each in (plan, *peers.values()):
        console.print(each.method, style="bold", highlight=False)
        for line in explain_stages(each, profile):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
