"""Quality and time of the planner against the published partitions, verl's own code among them.

    python benchmarks/planning.py [--quick] [--json] [--lengths PATH]

At 512 samples on 32 ranks the gap to the bound is of the whole step, vision and language; elsewhere of the language
partition. Planning time covers costs and language partition of prepared columns; vision units are timed apart. Times
are processor time, the least of seven repetitions, since all planners run on one thread and other processes share the
cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness import Case, Check, Report
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.cluster import load_cluster
from trimtab.cost.models import model_preset
from trimtab.planning.arrangement import arrange
from trimtab.planning.bounds import bin_bound, step_bound
from trimtab.planning.partition import partition
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import partition_problem
from trimtab.planning.strategies import VisionRule, strategy_named
from trimtab.planning.workloads import MIXES, generated_batch
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.table_file import read_table
from verl_environment import VerlPartitioner, verl_python

ARCHITECTURE = model_preset("mimo-vl-7b")
DEVICE = load_cluster("h800").device
SETTINGS = PlanSettings()
OURS = "whole-sample"
VERL = {"verl karmarkar-karp": False, "verl equal-count": True}
REPEAT = 7


@dataclass(frozen=True, kw_only=True)
class Size:
    """A problem size, how many batches of it, and what it must hold.

    Attributes:
        samples, ranks: N and R.
        batches: in a full and a quick run.
        peer_batches: those that peers plan too (they are slow), in a full and a quick run.
        limit_ms: of the median planning time.
        limit_gap: of the worst gap to the bound, or None.
    """

    samples: int
    ranks: int
    batches: tuple[int, int]
    peer_batches: tuple[int, int]
    limit_ms: float
    limit_gap: float | None

    def __str__(self) -> str:
        return f"{self.samples} x {self.ranks}"


SIZES = (
    Size(samples=512, ranks=32, batches=(40, 5), peer_batches=(40, 5), limit_ms=1.0, limit_gap=0.003),
    Size(samples=4096, ranks=128, batches=(20, 2), peer_batches=(3, 0), limit_ms=3.0, limit_gap=0.001),
    Size(samples=8192, ranks=1024, batches=(10, 1), peer_batches=(0, 0), limit_ms=50.0, limit_gap=None),
)
LIMIT_VISION_MS = 10.0
LIMIT_PEER = 0.001

Draw = Callable[[int, int], BatchMetadata]


@dataclass
class Figures:
    """Of one variant on one mix and size."""

    planning_ms: list[float] = field(default_factory=list)
    vision_ms: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    step_ratio: list[float] = field(default_factory=list)
    step_ratio_spread: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches, no result file, no new environment")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--lengths", metavar="PATH", help="metadata table whose rows are drawn as one more mix")
    args = parser.parse_args()
    report = Report(name="planning", quick=args.quick)
    python = verl_python(create=not args.quick)
    verl = None if python is None else VerlPartitioner(python)
    if verl is None:
        report.notes.append("verl skipped: its environment is missing; a run without --quick makes it")
    for size in SIZES:
        for mix, draw in mixes(args.lengths).items():
            print(f"{size}, {mix}", file=sys.stderr)
            measured = measure(size, draw, verl, quick=args.quick)
            add_cases(report, size, mix, measured)
            add_checks(report, size, mix, measured)
    if verl is not None:
        verl.close()
    return report.finish(as_json=args.json)


def mixes(lengths: str | None) -> dict[str, Draw]:
    """Every mix as a function of samples and seed."""
    found: dict[str, Draw] = {
        mix: lambda samples, seed, mix=mix: generated_batch(mix, samples, seed)  # type: ignore[misc]
        for mix in MIXES
    }
    if lengths is not None:
        table = read_table(lengths)

        def from_table(samples: int, seed: int) -> BatchMetadata:
            rows = np.random.default_rng(seed).choice(len(table), samples, replace=samples > len(table))
            return table.batch(rows)

        found["lengths file"] = from_table
    return found


def measure(size: Size, draw: Draw, verl: VerlPartitioner | None, *, quick: bool) -> dict[str, Figures]:
    """Plan every batch with every variant."""
    measured: dict[str, Figures] = {}
    batches, peer_batches = size.batches[quick], size.peer_batches[quick]
    warm_up(draw(size.samples, 0), size.ranks)
    for seed in range(batches):
        batch = draw(size.samples, seed)
        costs = analytic_costs(batch, ARCHITECTURE, DEVICE)
        problem = partition_problem(batch, costs, size.ranks, SETTINGS)
        names = [OURS, *(["loongforge"] if seed < peer_batches else [])]
        for name in names:
            assignment, planning_ms = plan_timed(batch, size.ranks, name)
            record(measured.setdefault(name, Figures()), batch, costs, problem, assignment, name, size, planning_ms)
        for name, equal_size in VERL.items() if verl is not None and seed < peer_batches else ():
            rank, times = verl.partition(  # type: ignore[union-attr]
                problem.cost_ns, size.ranks, equal_size=equal_size, repeat=1 if size.samples > 1000 else REPEAT
            )
            assignment = Assignment(rank=rank, micro_batch=np.zeros_like(rank))
            record(measured.setdefault(name, Figures()), batch, costs, problem, assignment, name, size, times)
    return measured


def warm_up(batch: BatchMetadata, ranks: int) -> None:
    for _ in range(3):
        plan_timed(batch, ranks, OURS)


def plan_timed(batch: BatchMetadata, ranks: int, name: str) -> tuple[Assignment, list[float]]:
    """The partition by one of our strategies, and milliseconds of costs and partition, repeated."""
    strategy = strategy_named(name)
    times = []
    for _ in range(REPEAT):
        started = time.process_time()
        costs = analytic_costs(batch, ARCHITECTURE, DEVICE)
        assignment = partition(partition_problem(batch, costs, ranks, SETTINGS), strategy)
        times.append((time.process_time() - started) * 1e3)
        if times[-1] > 50:
            break
    return assignment, times


def record(
    figures: Figures,
    batch: BatchMetadata,
    costs: Costs,
    problem: PartitionProblem,
    assignment: Assignment,
    name: str,
    size: Size,
    planning_ms: Sequence[float],
) -> None:
    """Add one batch's figures of one variant."""
    figures.planning_ms.append(min(planning_ms))
    if not whole_step(size):
        load = np.bincount(assignment.rank, weights=problem.cost_ns, minlength=size.ranks)
        figures.gap.append(float(load.max()) / bin_bound(problem.cost_ns, size.ranks) - 1)
        return
    published: VisionRule = strategy_named(name).vision if name in (OURS, "loongforge") else "at-owner"
    figures.vision_ms.append(min(vision_timed(batch, costs, problem, assignment)))
    even = even_share(batch, costs, size.ranks)
    for rule, ratios in ((published, figures.step_ratio), ("spread", figures.step_ratio_spread)):
        ratios.append(arrange(batch, costs, problem, assignment, rule).step_ns / even)
    bound = step_bound(costs.language_ns, costs.vision_frame_ns, batch.grid_thw[:, 0], size.ranks, 1, problem.sync)
    figures.gap.append(figures.step_ratio[-1] * even / bound - 1)


def vision_timed(batch: BatchMetadata, costs: Costs, problem: PartitionProblem, assignment: Assignment) -> list[float]:
    """Milliseconds of spreading the vision units and adding up the loads, repeated."""
    times = []
    for _ in range(REPEAT):
        started = time.process_time()
        arrange(batch, costs, problem, assignment, "spread")
        times.append((time.process_time() - started) * 1e3)
    return times


def whole_step(size: Size) -> bool:
    return (size.samples, size.ranks) == (512, 32)


def even_share(batch: BatchMetadata, costs: Costs, ranks: int) -> float:
    vision: NDArray[np.int64] = costs.vision_frame_ns * batch.grid_thw[:, 0]
    return (int(costs.language_ns.sum()) + int(vision.sum())) / ranks


def add_cases(report: Report, size: Size, mix: str, measured: dict[str, Figures]) -> None:
    case = f"{size}, {mix}"
    for name, figures in measured.items():
        report.cases.append(Case.of(case, f"{name}: planning", "ms", figures.planning_ms))
        gap = "gap of the step to its bound" if whole_step(size) else "gap of the language partition to its bound"
        report.cases.append(Case.of(case, f"{name}: {gap}", "%", [100 * value for value in figures.gap]))
        if figures.step_ratio:
            report.cases.append(Case.of(case, f"{name}: step ratio", "1", figures.step_ratio))
        if name == OURS and figures.vision_ms:
            report.cases.append(Case.of(case, f"{name}: vision units", "ms", figures.vision_ms))


def add_checks(report: Report, size: Size, mix: str, measured: dict[str, Figures]) -> None:
    case, ours = f"{size}, {mix}", measured[OURS]
    report.checks.append(Check.below(f"{case}: median planning ms", float(np.median(ours.planning_ms)), size.limit_ms))
    if size.limit_gap is not None:
        report.checks.append(Check.below(f"{case}: worst gap to the bound", max(ours.gap), size.limit_gap))
    if not whole_step(size):
        return
    report.checks.append(Check.below(f"{case}: median vision ms", float(np.median(ours.vision_ms)), LIMIT_VISION_MS))
    mean = float(np.mean(ours.step_ratio))
    for name, figures in measured.items():
        if name != OURS:
            best = min(float(np.mean(figures.step_ratio)), float(np.mean(figures.step_ratio_spread)))
            what = f"{case}: how far {name}'s mean step ratio is below ours (with its own vision, or with ours)"
            report.checks.append(Check.below(what, 1 - best / mean, LIMIT_PEER))


if __name__ == "__main__":
    sys.exit(main())
