"""One long sequence among short ones on real ranks: whole samples, one degree for all, a degree for each.

    python benchmarks/sequence_parallel.py [--quick] [--json]

Each round runs the same step under all plans by turns, forward and backward of a sharded model; a sequence's cost and
the links between ranks are measured first, and the plans made and predicted from them. A rank's processor time counts,
exchanges included: ranks meet in every layer, so a step lasts as long as its busiest rank. Wall time stands beside it,
where there are no more ranks than cores.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from harness import Case, Check, Report
from trimtab.cost.from_config import architecture_from_config
from trimtab.demo.tiny_models import tiny_config
from trimtab.loader.collate import PackableSample, pack
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import Ranks, ranks_of_default_group
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.metadata import BatchMetadata, SampleMetadata
from trimtab.schema.plans import StepPlan
from trimtab.testing import RankPool
from trimtab.training.calibrate import measure_costs
from trimtab.training.sequence_parallel import NOMINAL_CLUSTER, degree_costs, measure_links, sequence_nodes


@dataclass(frozen=True, kw_only=True)
class Size:
    """Rounds, width of the language model, tokens of the long sequence and of the short ones, short ones a rank."""

    rounds: int
    width: int
    long: int
    short: int
    short_each: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """Of one rank: the plans' predicted step times and degrees, and (wall, busy) milliseconds [round][variant]."""

    predicted_ms: list[float]
    degrees: list[list[int]]
    times: list[list[tuple[float, float]]]
    loss: list[float]


def variants(ranks: int) -> tuple[str, ...]:
    """Strategies compared."""
    return "whole-sample", f"uniform-{ranks}", "adaptive"


def run(group: dist.ProcessGroup, size: Size) -> Found:
    """All plans by turns on this rank."""
    torch.set_num_threads(1)
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=300)
    model, config, nodes = build(size, ranks)
    batch = batch_of(size, ranks.size)
    measured = measure_costs(model, batch, patch_dim=patch_values(model), ranks=ranks)
    if measured is None or nodes is None:
        raise RuntimeError("the machine is too busy: times of packs do not grow with their sizes")
    cluster = measure_links(nodes, ranks)
    language = architecture_from_config(config.to_dict()).language
    add_degrees = degree_costs(language, cluster, ranks=ranks.size, max_degree=ranks.size)
    costs = add_degrees(batch, measured(batch))
    plans = [
        plan_step(batch, costs, ranks.size, PlanSettings(strategy=name, max_degree=ranks.size))
        for name in variants(ranks.size)
    ]
    packs = [packs_of(plan, batch, ranks.rank, patch_values(model)) for plan in plans]
    losses = [step(model, own, batch, ranks) for own in packs]  # warms everything
    times = [[timed(model, own, batch, ranks) for own in packs] for _ in range(size.rounds)]
    return Found(
        predicted_ms=[plan.step_ns / 1e6 for plan in plans],
        degrees=[plan.degree.tolist() for plan in plans],
        times=times,
        loss=losses,
    )


def build(size: Size, ranks: Ranks) -> tuple[BalancedVLM, Any, Any]:
    """The sharded model, its configuration and the groups that share sequences."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = tiny_config("qwen2_5_vl")
    text, heads = config.text_config, size.width // 32
    text.hidden_size, text.intermediate_size = size.width, 2 * size.width
    text.num_attention_heads, text.num_key_value_heads, text.head_dim = heads, heads // 2, 32
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [4, 6, 6]}
    config.vision_config.out_hidden_size = size.width
    torch.manual_seed(0)
    nodes = sequence_nodes(
        architecture_from_config(config.to_dict()).language, ranks, max_degree=ranks.size, timeout_s=300
    )
    model = BalancedVLM(Qwen2_5_VLForConditionalGeneration(config), ranks.data, nodes=nodes)
    return shard(model, ranks.mesh), config, nodes


def batch_of(size: Size, ranks: int) -> BatchMetadata:
    """One long sequence and short ones."""
    lengths = [size.long, *[size.short] * (size.short_each * ranks)]
    samples = [
        SampleMetadata(sample_id=f"sample-{row}", text_tokens=length, loss_tokens=1, visuals=())
        for row, length in enumerate(lengths)
    ]
    return BatchMetadata.from_samples(samples, merge_size=2)


def packs_of(plan: StepPlan, batch: BatchMetadata, rank: int, patch_dim: int) -> list[PackedBatch]:
    """The packs of ``rank``."""
    samples = {row: sample_of(int(tokens), row) for row, tokens in enumerate(batch.tokens)}
    return [
        pack(plan, batch, rank, micro_batch, samples, [], patch_dim=patch_dim, pad_token=0)
        for micro_batch in range(plan.micro_batches)
    ]


def sample_of(tokens: int, row: int) -> PackableSample:
    """A random sample whose last token enters the loss."""
    draw = torch.Generator().manual_seed(row)
    weights = torch.zeros(tokens)
    weights[-1] = 1.0
    ids = torch.randint(3, 200, (tokens,), generator=draw)
    return PackableSample(input_ids=ids, position_ids=torch.arange(tokens).expand(3, -1), loss_weights=weights)


def patch_values(model: BalancedVLM) -> int:
    """Values in a patch."""
    vision = model.base.config.vision_config
    return int(3 * vision.temporal_patch_size * vision.patch_size**2)


def step(model: BalancedVLM, packs: Sequence[PackedBatch], batch: BatchMetadata, ranks: Ranks) -> float:
    """Forward and backward of a step; its loss, over all ranks."""
    total = torch.zeros((), dtype=torch.float64)
    for own in packs:
        loss: Any = step_loss(model(own).loss, own.loss_weights, float(len(batch)))
        (loss * gradient_scale(ranks.size)).backward()
        total += loss.detach().double()
    model.zero_grad(set_to_none=True)
    dist.all_reduce(total, group=ranks.control)
    return float(total)


def timed(model: BalancedVLM, packs: Sequence[PackedBatch], batch: BatchMetadata, ranks: Ranks) -> tuple[float, float]:
    """Wall and processor milliseconds of a step on this rank."""
    dist.barrier(group=ranks.control)
    wall, busy = time.perf_counter(), time.process_time()
    step(model, packs, batch, ranks)
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - busy) * 1e3


def report_ranks(report: Report, ranks: int, found: list[Found], size: Size) -> None:
    """Add the cases and checks of one number of ranks."""
    names = variants(ranks)
    case = f"{ranks} ranks, one of {size.long} tokens, {size.short_each * ranks} of {size.short}"
    turns = range(size.rounds)
    busy = [[max(rank.times[t][v][1] for rank in found) for t in turns] for v in range(len(names))]
    for v, name in enumerate(names):
        report.cases.append(Case.of(case, f"{name}, busiest rank's processor time", "ms", busy[v]))
        if ranks <= (os.cpu_count() or 1):
            wall = [max(rank.times[t][v][0] for rank in found) for t in turns]
            report.cases.append(Case.of(case, f"{name}, wall time", "ms", wall))
        report.cases.append(Case.of(case, f"{name}, predicted", "ms", [found[0].predicted_ms[v]]))
        ratios = [own / whole for own, whole in zip(busy[v], busy[0], strict=True)]
        report.cases.append(Case.of(case, f"{name} / whole-sample, measured, paired", "ratio", ratios))
        predicted = found[0].predicted_ms[v] / found[0].predicted_ms[0]
        report.cases.append(Case.of(case, f"{name} / whole-sample, predicted", "ratio", [predicted]))
        report.notes.append(f"{case}: {name} gives degrees {sorted(set(found[0].degrees[v]), reverse=True)}")
        off = abs(found[0].loss[v] - found[0].loss[0]) / abs(found[0].loss[0])
        report.checks.append(Check.below(f"{ranks} ranks: loss of {name} against whole-sample, relative", off, 1e-5))
    gain = median(own / whole for own, whole in zip(busy[-1], busy[0], strict=True))
    report.checks.append(
        Check.below(f"{ranks} ranks: adaptive / whole-sample, busiest rank, paired median", gain, 1.0, timed=True)
    )


def main() -> int:
    """Run on two and on four ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small rounds; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    size = Size(rounds=9, width=256, long=3072, short=192, short_each=4)
    if args.quick:
        size = Size(rounds=2, width=128, long=1024, short=96, short_each=3)
    report = Report(name="sequence_parallel", quick=args.quick)
    with RankPool() as pool:
        for ranks in (2, 4):
            report_ranks(report, ranks, pool.run(ranks, run, size, timeout_s=900), size)
    links = f"links measured over gloo; else {NOMINAL_CLUSTER.name}"
    report.notes.append(f"one thread a rank; {size.rounds} rounds by turns; {links}")
    return report.finish(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
