"""From which predicted gain on moving samples pays: where the balancer's threshold should lie.

    python benchmarks/balance_threshold.py [--quick] [--json]

Packs from nearly alike to heavy-tailed, on two real ranks under DDP. Every round draws new samples and runs them as
they come and balanced with no threshold, in turn first. A step's time is the processor time of the busiest rank, all
the balancer does included. Rounds are grouped by the gain the plan predicted.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dp_balance import RANKS, Size, Timing, model_of, pack, time_step
from harness import Case, Check, Report
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.testing import RankPool

SPREADS = (0.0, 0.03, 0.06, 0.1, 0.2, 0.4)
EDGES = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 1.0)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One rank's two steps on the same samples, and the gain the plan predicted."""

    off: Timing
    on: Timing
    predicted: float


def run_rounds(group: dist.ProcessGroup, size: Size) -> list[Round]:
    """Rounds of one rank, ``size.rounds`` of every spread."""
    model = model_of(size.width)
    use_packed_attention(model)
    wrapped = DistributedDataParallel(model)
    control = dist.new_group(backend="gloo")
    plan = PlanSettings(sync="step", balance_vision=False)
    moving = BalancerSettings(plan=plan, threshold=0.0)
    on = BatchBalancer.for_model(model.config, control, moving, name="on")
    off = BatchBalancer.for_model(model.config, control, replace(moving, mode="off"), name="off")
    rounds = []
    for turn in range(-1, size.rounds * len(SPREADS)):
        spread = SPREADS[turn % len(SPREADS)]
        batch = pack(model.config, (turn + 1, group.rank()), size, spread=spread)
        order = (on, off) if turn % 2 else (off, on)
        timed = {balancer: time_step(wrapped, balancer, [batch], group) for balancer in order}
        assert on.step is not None
        assert on.step.record is not None
        if turn >= 0:  # the first warms up
            rounds.append(Round(off=timed[off], on=timed[on], predicted=on.step.record.gain))
    return rounds


def report_rounds(report: Report, found: list[list[Round]]) -> None:
    """Cases by predicted gain, and the check at the default threshold."""
    turns = range(len(found[0]))
    predicted = np.array([found[0][turn].predicted for turn in turns])
    ratio = np.array([max(rank[t].on.busy for rank in found) / max(rank[t].off.busy for rank in found) for t in turns])
    inside = np.array([max(rank[t].on.inside / rank[t].on.busy for rank in found) for t in turns])
    for low, high in pairwise(EDGES):
        here = (predicted >= low) & (predicted < high)
        if here.any():
            case = f"predicted gain {100 * low:g} to {100 * high:g} %"
            report.cases.append(Case.of(case, "balanced / as it came, paired", "ratio", ratio[here].tolist()))
            report.cases.append(Case.of(case, "time inside the balancer", "% of step", (100 * inside[here]).tolist()))
    threshold = BalancerSettings().threshold
    above = predicted >= threshold
    if above.any() and not report.quick:
        what = f"balanced / as it came from a predicted gain of {threshold:g} on, paired median"
        report.checks.append(Check.below(what, median(ratio[above].tolist()), 1.0, timed=True))


def main() -> int:
    """Run the rounds on two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small rounds; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    size = Size(rounds=16, width=256, samples=8, text=120)
    if args.quick:
        size = Size(rounds=1, width=64, samples=5, text=30)
    report = Report(name="balance_threshold", quick=args.quick)
    with RankPool() as pool:
        report_rounds(report, pool.run(RANKS, run_rounds, size, timeout_s=1800))
    report.notes.append(f"{RANKS} ranks over gloo, one thread each; {size.rounds} rounds of every spread {SPREADS}")
    if args.quick:
        report.notes.append("steps too short to check anything by: the full run does")
    return report.finish(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
