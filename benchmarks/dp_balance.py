"""Balance across two real data-parallel ranks: step time as it comes, with LoongForge's rule, with ours, and the bound.

    python benchmarks/dp_balance.py [--quick] [--json]

Heavy-tailed packs of text, images and videos. Every round draws new samples and runs all variants on them by turns, so
their times are paired. Step time is from one barrier to the next, forward and backward; beside it stands the processor
time of the busiest rank, which other processes on the machine do not disturb and which the checks use. The bound is
the unbalanced variant's processor time divided by the ranks. Then the vision encoder alone, and batches that are
balanced already.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen2_5_VLForConditionalGeneration

from harness import Case, Check, Report
from trimtab.demo.tiny_models import tiny_config
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings
from trimtab.runtime.vision_balance import balance_encoder
from trimtab.schema.plans import Sync
from trimtab.testing import RankPool

RANKS = 2
TOLERANCE = 1.02
SYNC: dict[str, Sync] = {"FSDP2": "layer", "DDP": "step"}
ENCODERS: dict[str, Any] = {"unbalanced": None, "loongforge": "loongforge", "images": "images", "trimtab": "frames"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much to run: rounds, width of the language model, samples a rank and micro-batch, median text tokens."""

    rounds: int
    width: int
    samples: int
    text: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One variant in one round, on one rank: milliseconds of wall and processor time, and of that in the balancer."""

    wall: float
    busy: float
    inside: float


def model_of(width: int) -> Any:
    """A Qwen2.5-VL of the given width, with an encoder half as wide."""
    config: Any = tiny_config("qwen2_5_vl")
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.head_dim, text.num_attention_heads = (
        width,
        4 * width,
        32,
        width // 32,
    )
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [4, 6, 6]}
    vision.hidden_size, vision.intermediate_size, vision.num_heads = width // 2, 2 * width, 2
    vision.out_hidden_size = width
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config).train()


def pack(config: Any, seed: Sequence[int], size: Size, *, spread: float = 1.0) -> dict[str, Any]:
    """One rank's micro-batch: lognormal texts, each with an image or a video of its own size, or none.

    ``spread`` 0 makes all samples alike, 1 gives sizes a heavy tail.
    """
    draw = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(int(draw.integers(1 << 30)))
    ids, positions, grids = [], [], []
    for index in range(size.samples):
        text = int(np.clip(draw.lognormal(np.log(size.text), 1.1 * spread), 8, size.text * 12))
        frames, side = int(draw.choice([1, 1, 1, 4, 12])), 2 * int(draw.integers(2, 11))
        if draw.random() >= spread:
            frames, side = 1, 12
        visual = index % 3 != 2
        tokens = frames * side * side // 4 if visual else 0
        sample = [config.vision_start_token_id, *[config.video_token_id] * tokens, config.vision_end_token_id]
        sample += draw.integers(3, 90, text).tolist()
        ids.append(torch.tensor(sample))
        positions.append(torch.arange(len(sample)).expand(3, -1))
        if visual:
            grids.append([frames, side, side])
    lengths = [len(each) for each in ids]
    labels = torch.cat(ids)[None].clone()
    labels[labels >= config.vision_start_token_id] = -100
    batch = {
        "input_ids": torch.cat(ids)[None],
        "labels": labels,
        "position_ids": torch.cat(positions, dim=1)[:, None],
        "cu_seqlens": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
    }
    values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    patches = sum(int(np.prod(grid)) for grid in grids)
    batch["pixel_values_videos"] = torch.randn(patches, values, generator=generator)
    batch["video_grid_thw"] = torch.tensor(grids)
    return batch


def settings_of(variant: str, sync: Sync) -> BalancerSettings:
    """The balancer's settings of a variant."""
    if variant == "unbalanced":
        return BalancerSettings(mode="off")
    strategy = "loongforge" if variant == "loongforge" else "whole-sample"
    threshold = 0.0 if variant == "loongforge" else BalancerSettings().threshold
    return BalancerSettings(plan=PlanSettings(strategy=strategy, sync=sync, balance_vision=False), threshold=threshold)


def run_loop(
    group: dist.ProcessGroup, host: str, variants: Sequence[str], size: Size, spread: float
) -> list[list[Timing]]:
    """Timings [round][variant] of one rank."""
    model = model_of(size.width)
    use_packed_attention(model)
    config = model.config
    if host == "FSDP2":
        mesh = init_device_mesh("cpu", (group.size(),))
        for block in [*model.model.visual.blocks, *model.model.language_model.layers]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    wrapped = DistributedDataParallel(model) if host == "DDP" else model
    count = 2 if host == "DDP" else 1
    control = dist.new_group(backend="gloo")
    balancers = {
        name: BatchBalancer.for_model(config, control, settings_of(name, SYNC[host]), name=name) for name in variants
    }
    rounds = []
    for turn in range(size.rounds + 1):
        batches = [pack(config, (turn, group.rank(), index), size, spread=spread) for index in range(count)]
        order = [variants[(turn + offset) % len(variants)] for offset in range(len(variants))]
        timed = {name: time_step(wrapped, balancers[name], batches, group) for name in order}
        if turn:  # the first warms up
            rounds.append([timed[name] for name in variants])
    return rounds


def time_step(model: Any, balancer: BatchBalancer, batches: list[dict[str, Any]], group: dist.ProcessGroup) -> Timing:
    """One optimizer step without the optimizer."""
    dist.barrier(group)
    began, busy = time.perf_counter(), time.thread_time()
    step = balancer.balance(batches)
    inside = time.thread_time() - busy
    for index, batch in enumerate(step.micro_batches):
        inputs = {key: value for key, value in batch.items() if key != "cu_seqlens"}
        inputs["packed_lengths"] = tuple(np.diff(batch["cu_seqlens"].numpy()).tolist())
        last = index == len(step.micro_batches) - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            loss = model(**inputs, num_items_in_batch=step.denominator, use_cache=False).loss
            (loss * group.size()).backward()
    busy = time.thread_time() - busy
    dist.barrier(group)
    wall = time.perf_counter() - began
    model.zero_grad()
    return Timing(wall=wall * 1e3, busy=busy * 1e3, inside=inside * 1e3)


def run_encoder(group: dist.ProcessGroup, variants: Sequence[str], size: Size) -> list[list[Timing]]:
    """Timings [round][variant] of the encoder alone on one rank."""
    model = model_of(size.width)
    encoder = model.model.visual
    own = dist.new_group(backend="gloo")
    rounds = []
    for turn in range(size.rounds + 1):
        batch = pack(model.config, (turn, group.rank(), 0), size)
        timed = {}
        for name in variants:
            settings = EncoderBalanceSettings(
                mode="on" if ENCODERS[name] else "off", strategy=ENCODERS[name] or "frames"
            )
            hooks = balance_encoder(encoder, own, settings)
            dist.barrier(group)
            began, busy = time.perf_counter(), time.thread_time()
            output = encoder(batch["pixel_values_videos"], grid_thw=batch["video_grid_thw"]).pooler_output
            loss: Any = hooks.link(output.square().sum())
            loss.backward()
            busy = time.thread_time() - busy
            dist.barrier(group)
            timed[name] = Timing(wall=(time.perf_counter() - began) * 1e3, busy=busy * 1e3, inside=0.0)
            hooks.remove()
            encoder.zero_grad()
        if turn:
            rounds.append([timed[name] for name in variants])
    return rounds


def report_loop(report: Report, case: str, variants: Sequence[str], found: list[list[list[Timing]]]) -> None:
    """Add cases and checks from [rank][round][variant]."""
    turns = range(len(found[0]))
    wall = {name: [max(rank[t][v].wall for rank in found) for t in turns] for v, name in enumerate(variants)}
    busy = {name: [max(rank[t][v].busy for rank in found) for t in turns] for v, name in enumerate(variants)}
    for name in variants:
        report.cases.append(Case.of(case, f"{name}, step", "ms", wall[name]))
        report.cases.append(Case.of(case, f"{name}, busiest rank's processor time", "ms", busy[name]))
    bound = [sum(rank[t][0].busy for rank in found) / RANKS for t in turns]
    report.cases.append(Case.of(case, "bound: processor time / ranks", "ms", bound))
    for other, limit in (("unbalanced", 1.0), ("loongforge", TOLERANCE)):
        ratios = [ours / theirs for ours, theirs in zip(busy["trimtab"], busy[other], strict=True)]
        report.cases.append(Case.of(case, f"trimtab / {other}, paired", "ratio", ratios))
        if not report.quick:  # two rounds of a few milliseconds decide nothing
            what = f"{case}: busiest rank, trimtab / {other}, paired median"
            report.checks.append(Check.below(what, median(ratios), limit, timed=True))


def main() -> int:
    """Run everything on two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small rounds; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    size = Size(rounds=9, width=256, samples=12, text=120)
    if args.quick:
        size = Size(rounds=2, width=64, samples=5, text=30)
    report = Report(name="dp_balance", quick=args.quick)
    variants = ("unbalanced", "loongforge", "trimtab")
    with RankPool() as pool:
        for host in SYNC:
            found = pool.run(RANKS, run_loop, host, variants, size, 1.0, timeout_s=600)
            report_loop(report, f"{host}, heavy-tailed", variants, found)
        encoders = tuple(ENCODERS)
        report_loop(report, "encoder alone", encoders, pool.run(RANKS, run_encoder, encoders, size, timeout_s=600))
        even = pool.run(RANKS, run_loop, "FSDP2", ("trimtab",), size, 0.0, timeout_s=600)
    shares = [100 * max(rank[t][0].inside / rank[t][0].busy for rank in even) for t in range(len(even[0]))]
    report.cases.append(Case.of("balanced already", "time inside the balancer", "% of step", shares))
    if not args.quick:
        report.checks.append(Check.below("balanced already: % of step inside the balancer", median(shares), 1.0))
    report.notes.append(f"{RANKS} ranks over gloo, one thread each; {size.rounds} rounds by turns")
    if args.quick:
        report.notes.append("steps too short to check anything by: the full run does")
    return report.finish(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
