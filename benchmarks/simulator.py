"""How long simulating takes: 1,024 ranks and 100 steps of one strategy, the planner's time beside it.

python benchmarks/simulator.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

from harness import Case, Check, Report
from trimtab.cost.models import model_preset
from trimtab.simulate.run import job_of
from trimtab.simulate.scenario import RolloutSettings, Scenario
from trimtab.simulate.step import simulate_steps
from trimtab.simulate.strategies import strategy_named

RANKS = 1024
STEPS = 100
LIMIT_S = 30.0
QUICK_SHARE = 20


def scenario_of(task: str) -> Scenario:
    """Eight samples a rank, FlexRL's image-heavy mix."""
    grpo = task == "grpo"
    return Scenario(
        name=task,
        task="grpo" if grpo else "sft",
        data="image-heavy",
        ranks=RANKS,
        batch_size=(2 if grpo else 8) * RANKS,
        shards=64,
        rollout=RolloutSettings(replies=4),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK_SHARE}th of the steps")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = Report(name="simulator", quick=args.quick)
    steps = STEPS // QUICK_SHARE if args.quick else STEPS
    for task in ("sft", "grpo"):
        job = job_of(scenario_of(task), model_preset("mimo-vl-7b"))
        for name in ("loader-only", "all"):
            began = time.perf_counter()
            done = list(islice(simulate_steps(job, strategy_named(name, task)), steps))
            planning = sum(step.planning_seconds for step in done)
            simulating = time.perf_counter() - began - planning
            case = f"{task}, {RANKS} ranks, {steps} steps"
            report.cases.append(Case.of(case, f"{name}: simulating", "s", [simulating]))
            report.cases.append(Case.of(case, f"{name}: planning", "s", [planning]))
            report.checks.append(
                Check.below(f"{case}, {name}: s for {STEPS} steps, planning apart", simulating * STEPS / steps, LIMIT_S)
            )
    return report.finish(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
