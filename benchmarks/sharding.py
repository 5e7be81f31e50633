"""Sharded plans beside whole samples and uniform degrees, simulated: ratios, bytes and planning time.

    python benchmarks/sharding.py [--quick] [--json]

Three generated mixes on H800 nodes, MiMo-VL-7B, every layer recomputed, 70 % of the all-to-all hidden. Ratios are of
the language model alone and predicted: nothing is run. Planning time is processor time of the language partition, the
less of two runs. "offline" is a random search over degrees from the adaptive plan, far longer than a step allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness import Case, Check, Report
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.cluster import load_cluster
from trimtab.cost.flops import TRAIN_RECOMPUTE
from trimtab.cost.models import model_preset
from trimtab.cost.sharding import ExchangeCost, with_degrees
from trimtab.errors import SettingsError
from trimtab.planning.bounds import attention_floor
from trimtab.planning.loads import cost_at_degree, sharded_loads
from trimtab.planning.metrics import largest_over_mean
from trimtab.planning.node_placement import NodePlacer
from trimtab.planning.partition import partition
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import partition_problem
from trimtab.planning.strategies import strategy_named
from trimtab.planning.workloads import MIXES, generated_batch
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

ARCHITECTURE = model_preset("mimo-vl-7b")
CLUSTER = load_cluster("h800")
MAX_DEGREE = 8
STRATEGIES = ("equal-count", "whole-sample", "uniform-2", "uniform-4", "uniform-8", "adaptive", "adaptive, attention")
CANDIDATES = STRATEGIES[1:5]
RANKS = (8, 32, 64, 128, 1024)
QUICK_RANKS = (8, 32)
PER_RANK = (8, 2)
LIMIT_MS = {128: 100.0, 1024: 300.0}
LIMIT_BEST = 1.02
LIMIT_ATTENTION = 1.02
OFFLINE_RANKS = 128
OFFLINE_TRIES = 300
# One changed at a time: (what, exchange costs, largest degree).
SENSITIVITY = (
    ("as above", ExchangeCost(), 8),
    *((f"h_pack={value}", ExchangeCost(pack_below=value), 8) for value in (0, 1024, 16384)),
    *((f"H_pack={value}", ExchangeCost(pack_tokens=value), 8) for value in (4096, 65536)),
    *((f"p_max={value}", ExchangeCost(), value) for value in (2, 4, 16, 32)),
    *((f"overlap={value}", ExchangeCost(overlap=value), 8) for value in (0.0, 0.5)),
)


@dataclass
class Figures:
    """Of one strategy at one size."""

    step: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    bytes_share: list[float] = field(default_factory=list)
    planning_ms: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one batch each, no result file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    report = Report(name="sharding", quick=args.quick)
    report.notes.append("simulated: predicted times on H800 nodes, language model alone; planning time is measured")
    for per_rank in PER_RANK:
        for ranks in QUICK_RANKS if args.quick else RANKS:
            for mix in MIXES:
                print(f"{mix}, {ranks} ranks, {per_rank} a rank", file=sys.stderr)
                compare(report, mix, ranks, per_rank, batches=1 if args.quick or ranks > 128 else 5)
    for what, exchange, max_degree in SENSITIVITY[: 2 if args.quick else None]:
        sensitivity(report, what, exchange, max_degree, batches=1 if args.quick else 5)
    return report.finish(as_json=args.json)


def costs_of(
    batch: BatchMetadata, ranks: int, exchange: ExchangeCost | None = None, max_degree: int = MAX_DEGREE
) -> Costs:
    whole = analytic_costs(batch, ARCHITECTURE, CLUSTER.device, language_passes=TRAIN_RECOMPUTE)
    return with_degrees(
        whole,
        batch.tokens,
        ARCHITECTURE.language,
        CLUSTER,
        ranks,
        max_degree=max_degree,
        passes=TRAIN_RECOMPUTE,
        exchange=exchange,
    )


def planned(
    name: str, batch: BatchMetadata, costs: Costs, ranks: int, max_degree: int = MAX_DEGREE
) -> tuple[PartitionProblem, Assignment, float]:
    """The language partition of a strategy and the milliseconds it took, the less of two runs."""
    settings = PlanSettings(strategy=name.split(",")[0], max_degree=max_degree)
    if name.endswith("attention"):
        settings = replace(settings, objective="attention")
    times = []
    for _ in range(2):
        started = time.process_time()
        problem = partition_problem(batch, costs, ranks, settings)
        assignment = partition(problem, strategy_named(settings.strategy))
        times.append((time.process_time() - started) * 1e3)
    return problem, assignment, min(times)


def compare(report: Report, mix: str, ranks: int, per_rank: int, *, batches: int) -> None:
    """Every strategy on the same batches."""
    case = f"{mix}, {ranks} ranks, {per_rank} a rank"
    figures: dict[str, Figures] = {}
    floors, offline, behind = [], [], []
    for seed in range(batches):
        batch = generated_batch(mix, ranks * per_rank, seed)
        costs = costs_of(batch, ranks)
        ideal = float(costs.language_ns.sum()) / ranks
        floors.append(
            attention_floor(batch.tokens, ranks, ARCHITECTURE.language.legal_degrees(min(MAX_DEGREE, ranks))[-1])
        )
        for name in STRATEGIES:
            problem, assignment, planning_ms = planned(name, batch, costs, ranks)
            add(figures.setdefault(name, Figures()), batch, costs, assignment, ranks, planning_ms)
            if name == "adaptive" and ranks <= OFFLINE_RANKS:
                offline.append(searched(problem, assignment, seed) / ideal)
        best = min([figures[name].step[-1] for name in CANDIDATES] + offline[-1:])
        behind.append(figures["adaptive"].step[-1] / best)
    add_cases(report, case, figures, floors, offline)
    add_checks(report, case, figures, behind, ranks)


def add(
    figures: Figures, batch: BatchMetadata, costs: Costs, assignment: Assignment, ranks: int, planning_ms: float
) -> None:
    degree = np.ones(len(batch), dtype=np.int64) if assignment.degree is None else assignment.degree

    def on_ranks(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(sharded_loads(values, assignment.rank, assignment.micro_batch, degree, (1, ranks))[0])

    assert costs.sharded is not None
    sent = costs.sharded.sent_bytes
    column = np.searchsorted(costs.sharded.degrees, degree)
    figures.step.append(float(on_ranks(cost_at_degree(costs, degree)).max() * ranks / costs.language_ns.sum()))
    figures.attention.append(largest_over_mean(on_ranks(np.square(batch.tokens) // degree)))
    figures.bytes_share.append(float(sent[np.arange(len(batch)), column].sum() / sent[:, -1].sum()))
    figures.planning_ms.append(planning_ms)


def searched(problem: PartitionProblem, start: Assignment, seed: int) -> float:
    """Slowest rank after a random search over degrees from the adaptive plan, nanoseconds."""
    sharding = problem.sharding
    assert sharding is not None
    assert start.degree is not None
    rng = np.random.default_rng(seed)
    placer = NodePlacer(problem, sharding, 0)
    column = np.searchsorted(sharding.family.degrees, start.degree).astype(np.int64)
    found = placer.place(column, 20)
    best = np.inf if found is None else float(found.slowest_ns)
    for _ in range(OFFLINE_TRIES):
        changed = column.copy()
        rows = rng.integers(len(problem), size=int(rng.integers(1, 2 + len(problem) // 16)))
        changed[rows] = np.clip(changed[rows] + rng.choice((-1, 1), len(rows)), 0, len(sharding.family.degrees) - 1)
        found = placer.place(changed, 20, best)
        if found is not None and found.slowest_ns < best:
            best, column = float(found.slowest_ns), changed
    return best


def add_cases(
    report: Report, case: str, figures: dict[str, Figures], floors: list[float], offline: list[float]
) -> None:
    report.cases.append(Case.of(case, "attention floor", "1", floors))
    if offline:
        report.cases.append(Case.of(case, "offline search: step ratio", "1", offline))
    for name, each in figures.items():
        report.cases.append(Case.of(case, f"{name}: step ratio", "1", each.step))
        report.cases.append(Case.of(case, f"{name}: attention ratio", "1", each.attention))
        report.cases.append(Case.of(case, f"{name}: bytes against uniform-8", "1", each.bytes_share))
        report.cases.append(Case.of(case, f"{name}: planning", "ms", each.planning_ms))


def add_checks(report: Report, case: str, figures: dict[str, Figures], behind: list[float], ranks: int) -> None:
    what = f"{case}: adaptive against the best candidate or offline plan"
    report.checks.append(Check.below(what, max(behind), LIMIT_BEST))
    if ranks in LIMIT_MS:
        median = float(np.median(figures["adaptive"].planning_ms))
        report.checks.append(Check.below(f"{case}: median planning ms", median, LIMIT_MS[ranks]))
    if case == "image-heavy, 32 ranks, 8 a rank":
        worst = max(figures["adaptive, attention"].attention)
        report.checks.append(Check.below(f"{case}: worst attention ratio where asked for", worst, LIMIT_ATTENTION))


def sensitivity(report: Report, what: str, exchange: ExchangeCost, max_degree: int, *, batches: int) -> None:
    """Step ratios with one default changed."""
    for per_rank in PER_RANK:
        found: dict[str, list[float]] = {}
        for seed in range(batches):
            batch = generated_batch("image-heavy", 32 * per_rank, seed)
            costs = costs_of(batch, 32, exchange, max_degree)
            for name in ("uniform-8", "adaptive"):
                figures = Figures()
                try:
                    _, assignment, planning_ms = planned(name, batch, costs, 32, max_degree)
                except SettingsError:  # p_max below 8
                    continue
                add(figures, batch, costs, assignment, 32, planning_ms)
                found.setdefault(name, []).append(figures.step[0])
        for name, ratios in found.items():
            case = f"sensitivity: image-heavy, 32 ranks, {per_rank} a rank"
            report.cases.append(Case.of(case, f"{what}, {name}: step ratio", "1", ratios))


if __name__ == "__main__":
    sys.exit(main())
