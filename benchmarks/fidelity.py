"""How far predicted step times are off on real ranks: ratios for length mixes and rank counts that were not fitted.

    python benchmarks/fidelity.py [--quick] [--json]

A small Qwen2.5-VL runs forward and backward under DDP on 2, 3 and 4 CPU processes. One process first times packs of one
size each, which gives the cost model and what a micro-batch takes whatever it holds; no step of a mix is fitted.
Predicted and measured step times are then both divided by those of the first mix on 2 ranks. Beside them stands the
usual estimate: as many tokens a second and rank as in that first case, whatever their lengths. Step times are the
processor time of the busiest rank, since there may be more ranks than cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dp_balance import model_of
from harness import Case, Check, Report
from trimtab.cost.cluster import Link, load_cluster
from trimtab.cost.measured import MeasuredCost, fit_packs
from trimtab.cost.models import model_preset
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.attention import use_packed_attention
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.simulate.compute import run_plan
from trimtab.simulate.job import Job
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.workload import Workload
from trimtab.testing import RankPool

WIDTH = 256
SAMPLES = 4
MIXES = ("short", "long tail", "images", "videos", "mixed")
CALIBRATION = ([32], [128], [512], [1500], [64] * 4, [256] * 4)
FRAMES = ((4, 2), (8, 8), (16, 4), (24, 2), (16, 8), (8, 24))


@dataclass(frozen=True)
class Sized:
    """A sample: tokens of text, and frames of side x side patches, or none."""

    text: int
    frames: int = 0
    side: int = 0


def samples_of(mix: str, seed: Sequence[int]) -> list[Sized]:
    """One rank's samples of a step."""
    draw = np.random.default_rng(list(seed))
    found = []
    for index in range(SAMPLES):
        kind = MIXES[int(draw.integers(1, 4))] if mix == "mixed" else mix
        text = int(np.clip(draw.lognormal(np.log(60), 0.4), 8, 400))
        frames, side = (1, 2 * int(draw.integers(2, 5))) if index % 2 else (0, 0)
        if kind == "long tail":
            text = int(np.clip(draw.lognormal(np.log(150), 1.2), 8, 1800))
        elif kind == "images":
            frames, side = 1, 2 * int(draw.integers(3, 13))
        elif kind == "videos":
            frames, side = int(draw.choice([2, 4, 8, 16])), 2 * int(draw.integers(2, 7))
        found.append(Sized(text, frames, side))
    return found


def metadata(samples: Sequence[Sized]) -> BatchMetadata:
    """What the planner sees of them; markers around a visual count as text."""
    rows = []
    for index, sample in enumerate(samples):
        grid = {"grid_t": sample.frames, "grid_h": sample.side, "grid_w": sample.side}
        visuals = (Visual(kind="video", source="", **grid),) if sample.frames else ()
        text = sample.text + 2
        rows.append(SampleMetadata(sample_id=str(index), text_tokens=text, loss_tokens=text, visuals=visuals))
    return BatchMetadata.from_samples(rows, 2)


def inputs_of(config: Any, samples: Sequence[Sized]) -> dict[str, Any]:
    """The model's arguments for one packed micro-batch."""
    generator = torch.Generator().manual_seed(0)
    ids, positions, grids = [], [], []
    for sample in samples:
        visual = [config.video_token_id] * (sample.frames * sample.side**2 // 4)
        tokens = [config.vision_start_token_id, *visual, config.vision_end_token_id, *[5] * sample.text]
        ids.append(torch.tensor(tokens))
        positions.append(torch.arange(len(tokens)).expand(3, -1))
        if sample.frames:
            grids.append([sample.frames, sample.side, sample.side])
    labels = torch.cat(ids)[None].clone()
    labels[labels >= config.vision_start_token_id] = -100
    inputs = {
        "input_ids": torch.cat(ids)[None],
        "labels": labels,
        "position_ids": torch.cat(positions, dim=1)[:, None],
        "packed_lengths": tuple(len(each) for each in ids),
    }
    if grids:
        values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
        patches = sum(int(np.prod(grid)) for grid in grids)
        inputs["pixel_values_videos"] = torch.randn(patches, values, generator=generator)
        inputs["video_grid_thw"] = torch.tensor(grids)
    return inputs


def timed(model: Any, inputs: dict[str, Any]) -> float:
    """Processor time of forward and backward, nanoseconds."""
    began = time.thread_time_ns()
    model(**inputs, use_cache=False).loss.backward()
    took = float(time.thread_time_ns() - began)
    model.zero_grad()
    return took


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Costs of sequences and frames, and milliseconds of a micro-batch whatever it holds."""

    cost: MeasuredCost
    micro_batch_ms: float


def calibrate(group: dist.ProcessGroup, repeats: int) -> Calibration:
    """Costs from packs of equal sequences, and from frames of one size, on one rank."""
    model = wrapped_model(group)

    def least(samples: Sequence[Sized]) -> float:
        inputs = inputs_of(model.module.config, samples)
        return min(timed(model, inputs) for _ in range(repeats + 1))

    language = fit_packs(CALIBRATION, [least([Sized(length - 2) for length in pack]) for pack in CALIBRATION])
    vision_ns = []
    for side, frames in FRAMES:
        as_text = least([Sized(8 + frames * side**2 // 4)])
        vision_ns.append(max(least([Sized(8, frames, side)]) - as_text, 1.0))
    vision = fit_packs([[side * side] * frames for side, frames in FRAMES], vision_ns)
    return Calibration(
        cost=MeasuredCost(language=language.item, frame=vision.item),
        micro_batch_ms=(language.overhead_ns + vision.overhead_ns) / 1e6,
    )


def wrapped_model(group: dist.ProcessGroup) -> DistributedDataParallel:
    """The model as every measurement runs it; packs without visuals leave the encoder's weights unused."""
    model = model_of(WIDTH)
    use_packed_attention(model)
    return DistributedDataParallel(model, process_group=group, find_unused_parameters=True)


def measure(group: dist.ProcessGroup, mixes: Sequence[str], rounds: int) -> list[list[float]]:
    """Processor time [mix][round] of this rank, nanoseconds; mixes by turns, the first round warms up."""
    wrapped = wrapped_model(group)
    found: list[list[float]] = [[] for _ in mixes]
    for turn in range(-1, rounds):
        for index, mix in enumerate(mixes):
            inputs = inputs_of(wrapped.module.config, samples_of(mix, (index, max(turn, 0), group.rank())))
            dist.barrier(group)
            took = timed(wrapped, inputs)
            if turn >= 0:
                found[index].append(took)
    return found


def predicted(fitted: Calibration, mix: str, ranks: int, rounds: int) -> list[float]:
    """Simulated nanoseconds of every round's step."""
    cluster = load_cluster("h100")
    free = Link(latency=1e-18, all_to_all=1e24, all_gather=1e24, all_reduce=1e24)
    times = []
    for turn in range(rounds):
        rows = [each for rank in range(ranks) for each in samples_of(mix, (MIXES.index(mix), turn, rank))]
        batch = metadata(rows)
        job = Job(
            scenario=Scenario(
                ranks=ranks, batch_size=len(rows), sync="micro_batch", micro_batch_ms=fitted.micro_batch_ms
            ),
            architecture=model_preset("qwen2.5-vl-7b"),
            cluster=replace(cluster, node=free, across=free),
            workload=Workload(
                samples=batch, decode_pixels=np.zeros(0), kept_pixels=np.zeros(0), values_per_patch=1, description=mix
            ),
            measured=fitted.cost,
        )
        plan = plan_step(batch, job.costs(batch, job.passes), ranks, PlanSettings(strategy="as-is", sync="micro_batch"))
        times.append(run_plan(job, plan, batch, 0.0, train=True) * 1e9)
    return times


def tokens_of(mix: str, ranks: int, rounds: int) -> float:
    """Median tokens a rank of a step: what the usual estimate knows."""
    index = MIXES.index(mix)
    return median(
        sum(int(metadata(samples_of(mix, (index, turn, rank))).tokens.sum()) for rank in range(ranks)) / ranks
        for turn in range(rounds)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rank counts, two rounds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    worlds, rounds = ((2, 3), 3) if args.quick else ((2, 3, 4), 5)
    report = Report(name="fidelity", quick=args.quick)
    with RankPool() as pool:
        fitted = pool.run(1, calibrate, 1 if args.quick else 3)[0]
        measured = {}
        for world in worlds:
            of_ranks = pool.run(world, measure, MIXES, rounds, timeout_s=240)
            for index, mix in enumerate(MIXES):
                measured[mix, world] = [max(rank[index][turn] for rank in of_ranks) for turn in range(rounds)]
    compare(report, fitted, measured, rounds)
    report.notes += [
        "The machine was shared with other work; processor time, not wall time, is compared.",
        f"Fitted to packs of one size each: language {fitted.cost.language}, frame {fitted.cost.frame} (ns); "
        f"a micro-batch whatever it holds {fitted.micro_batch_ms:.1f} ms.",
        "Off: |predicted ratio / measured ratio - 1|; ratios are to the mix `short` on 2 ranks.",
        "The simulator predicts 4 CPU ranks here, no GPU and no link; it says nothing of those.",
    ]
    return report.finish(as_json=args.json)


def compare(report: Report, fitted: Calibration, measured: dict[tuple[str, int], list[float]], rounds: int) -> None:
    """Add ratios, errors and checks."""
    base = (MIXES[0], 2)
    real0, ours0, naive0 = median(measured[base]), median(predicted(fitted, *base, rounds)), tokens_of(*base, rounds)
    off: dict[str, list[float]] = {"simulated": [], "tokens/s x tokens": []}
    for (mix, world), times in measured.items():
        case = f"{mix}, {world} ranks"
        real = median(times) / real0
        found = {
            "simulated": median(predicted(fitted, mix, world, rounds)) / ours0,
            "tokens/s x tokens": tokens_of(mix, world, rounds) / naive0,
        }
        report.cases.append(Case.of(case, "measured", "ratio", [each / real0 for each in times]))
        for name, ratio in found.items():
            report.cases.append(Case.of(case, name, "ratio", [ratio]))
            if (mix, world) != base:
                off[name].append(abs(ratio / real - 1))
                report.cases.append(Case.of(case, f"{name}, off", "%", [100 * off[name][-1]]))
    for name, errors in off.items():
        report.cases.append(Case.of("all not fitted", f"{name}, off", "%", [100 * error for error in errors]))
    worse = median(off["simulated"]) / max(median(off["tokens/s x tokens"]), 1e-9)
    report.checks.append(Check.below("median error over that of tokens/s x tokens", worse, 1.0))


if __name__ == "__main__":
    raise SystemExit(main())
