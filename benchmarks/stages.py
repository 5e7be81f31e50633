"""Stage plans of 6+20B and 6+34B under each method, simulated, beside the published ratios.

    python benchmarks/stages.py [--quick] [--json]

A micro-batch is a pack of 18 tiles and 6,016 tokens, every method has the same 32 of them, 4 stages, 80 GB and 8
data-parallel ranks that share optimizer state, on A100 nodes. Times are predicted: nothing is run. OmniBal (ICML 2025,
arXiv 2407.20761) reports GPU-days of whole runs on its Megatron backend, unbalanced against balanced.
"""

from __future__ import annotations

import argparse
import sys
import time

from harness import Case, Check, Report
from trimtab.cost.cluster import load_cluster
from trimtab.cost.layer_profile import MicroBatch, layer_profile
from trimtab.cost.models import model_preset
from trimtab.errors import InfeasibleError
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stages import plan_peers, plan_stages
from trimtab.schema.stages import Schedule, StagePlan

CLUSTER = load_cluster("a100")
MODELS = {"internvl-6b-20b": "6+20B", "internvl-6b-34b": "6+34B"}
# GPU-days on the Megatron backend before and after: all of it, and without the gain of data balance (61.8 to 51.9 for
# 6+20B), which a plan of stages does not have.
PUBLISHED = {"6+20B": (61.8, 21.3, 51.9), "6+34B": (75.4, 30.5, None)}
TILES, TOKENS, MICRO_BATCHES, MEMORY_GB, OPTIMIZER_SHARDS = 18, 6016, 32, 80, 8
STAGES = (4, 8)
LIMIT_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four stages, 1F1B only, no result file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    report = Report(name="stages", quick=args.quick)
    simulate(report, quick=args.quick)
    return report.finish(as_json=args.json)


def simulate(report: Report, *, quick: bool) -> None:
    """The simulated part: predicted steps of large models on A100 nodes."""
    report.notes.append(
        "simulated: predicted times on A100 nodes, nothing was run; published ratios are of GPU-days of whole runs"
    )
    for model, label in MODELS.items():
        for stages in STAGES[:1] if quick else STAGES:
            compare(report, model, label, stages)
        published(report, label)
    if not quick:
        compare(report, "internvl-6b-20b", "6+20B", 4, schedule="interleaved", chunks=2)
        for gigabytes in (60, 70, 100):
            compare(report, "internvl-6b-20b", "6+20B", 4, memory_gb=gigabytes)


def compare(
    report: Report,
    model: str,
    label: str,
    stages: int,
    *,
    schedule: Schedule = "1f1b",
    chunks: int = 1,
    memory_gb: int = MEMORY_GB,
) -> None:
    """Every method on one problem."""
    profile = layer_profile(
        model_preset(model),
        CLUSTER.device,
        MicroBatch.of_pack(TOKENS, TILES),
        CLUSTER.across,
        optimizer_shards=OPTIMIZER_SHARDS,
    )
    problem = StageProblem(
        profile=profile,
        ranks=stages,
        micro_batches=MICRO_BATCHES,
        memory_bytes=memory_gb * 10**9,
        schedule=schedule,
        chunks=chunks,
    )
    case = f"simulated: {label}, {stages} stages, {schedule}, {memory_gb} GB"
    started = time.process_time()
    try:
        joint = plan_stages(problem)
    except InfeasibleError as error:
        report.notes.append(f"{case}: {error}")
        return
    seconds = time.process_time() - started
    peers = plan_peers(problem, joint.lower_bound_ns)
    for plan in (joint, *peers.values()):
        add_plan(report, case, plan, joint)
    report.cases.append(Case.of(case, "joint: planning", "s", [seconds]))
    report.checks.append(Check.below(f"{case}: planning seconds", seconds, LIMIT_SECONDS))
    fullest = max(memory.peak for memory in joint.memory) / problem.memory_bytes
    report.checks.append(Check.below(f"{case}: joint, memory against the cap", fullest, 1.0))
    slowest = max((joint.step_ns / peer.step_ns for peer in peers.values() if peer.fits), default=0.0)
    report.checks.append(Check.below(f"{case}: joint against the best method that fits", slowest, 1.0))


def add_plan(report: Report, case: str, plan: StagePlan, joint: StagePlan) -> None:
    name = plan.method if plan.fits else f"{plan.method} (does not fit)"
    figures = {
        "predicted step": ("s", plan.step_ns * 1e-9),
        "against joint": ("1", plan.step_ns / joint.step_ns),
        "idle share": ("1", plan.bubble),
        "fullest rank": ("GB", max(memory.peak for memory in plan.memory) * 1e-9),
        "layers that recompute": ("layers", sum(len(rows) for rows in plan.recompute)),
    }
    for what, (unit, value) in figures.items():
        report.cases.append(Case.of(case, f"{name}: {what}", unit, [value]))
    if plan is joint:
        gap = plan.step_ns / plan.lower_bound_ns
        report.cases.append(Case.of(case, f"{name}: step against the lower bound", "1", [gap]))


def published(report: Report, label: str) -> None:
    """The paper's ratios, not measured here."""
    before, after, data_balanced = PUBLISHED[label]
    case = f"published: {label}, OmniBal on Megatron, GPU-days"
    report.cases.append(Case.of(case, "unbalanced against balanced", "1", [before / after]))
    if data_balanced is not None:
        report.cases.append(Case.of(case, "the same after data balance", "1", [data_balanced / after]))


if __name__ == "__main__":
    sys.exit(main())
