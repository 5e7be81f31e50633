"""Pipelines of a small uneven model on real ranks: uniform, published search and joint plans, all in one run.

    python benchmarks/stages_measured.py [--quick] [--json]

Layers are profiled on one rank first; every plan is made from that profile under the same memory cap. Plans run by
turns. A step's time is its schedule played back with the processor time each forward and backward took on its rank, so
that ranks which share a core count as if they had one each; transfers count nothing. Memory is what the tensors of a
rank take at most, weights and gradients included.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from harness import Case, Check, Report
from trimtab.demo.special_tokens import VOCABULARY_SIZE
from trimtab.demo.tiny_models import text_token_ids, visual_token_ids
from trimtab.planning.pipeline_memory import peak_bytes
from trimtab.planning.pipeline_schedule import Action, rank_actions
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stages import plan_peers, plan_stages
from trimtab.runtime.layer_profiling import profile_layers
from trimtab.runtime.loss import step_loss
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.pipeline import PipelinedVLM
from trimtab.runtime.pipeline_transfers import TimedAction
from trimtab.runtime.positions import rope_positions
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.routes import LocalRoute
from trimtab.schema.stages import LayerProfile, StagePlan
from trimtab.testing import RankPool

METHODS = ("uniform-layers", "published-search", "joint")
MEMORY_LIMIT = 0.10
CAP_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the model and its micro-batches."""

    vision_layers: int
    language_layers: int
    width: int
    side: int
    micro_batches: int


FULL = Size(vision_layers=6, language_layers=6, width=64, side=16, micro_batches=8)
QUICK = Size(vision_layers=4, language_layers=4, width=64, side=16, micro_batches=4)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one rank and one plan: what ran in each step, losses, most bytes held."""

    actions: list[tuple[TimedAction, ...]]
    losses: list[float]
    peak_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model on two ranks, no result file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    report = Report(name="stages_measured", quick=args.quick)
    report.notes.append("measured on CPU ranks over gloo; processor times played back in the schedule's order")
    report.notes.append(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    size, repeats = (QUICK, 2) if args.quick else (FULL, 7)
    with RankPool() as pool:
        (profile,) = pool.run(1, profiled, size, timeout_s=500.0)
        for ranks in (2,) if args.quick else (2, 4):
            print(f"{ranks} ranks", file=sys.stderr)
            plans = planned(profile, ranks, size.micro_batches)
            found = pool.run(ranks, run_plans, plans, size, repeats, timeout_s=900.0)
            compare(report, f"{ranks} ranks", plans, profile, found)
    return report.finish(as_json=args.json)


def planned(profile: LayerProfile, ranks: int, micro_batches: int) -> dict[str, StagePlan]:
    """Every method under a cap below what uniform layers take without recomputation."""
    free = StageProblem(profile=profile, ranks=ranks, micro_batches=micro_batches, memory_bytes=1 << 60)
    cap = int(CAP_SHARE * max(memory.peak for memory in plan_peers(free)["uniform-layers"].memory))
    problem = StageProblem(profile=profile, ranks=ranks, micro_batches=micro_batches, memory_bytes=cap)
    plans = {**plan_peers(problem), "joint": plan_stages(problem)}
    return {name: plans[name] for name in METHODS}


def compare(
    report: Report,
    case: str,
    plans: Mapping[str, StagePlan],
    profile: LayerProfile,
    found: Sequence[Mapping[str, Measured]],
) -> None:
    """Cases and checks of one number of ranks."""
    steps = {name: step_times(plan, [rank[name].actions for rank in found]) for name, plan in plans.items()}
    for name, plan in plans.items():
        report.cases.append(Case.of(case, f"{name}, measured", "ms a step", [step * 1e3 for step in steps[name]]))
        report.cases.append(Case.of(case, f"{name}, predicted", "ms a step", [plan.step_ns / 1e6]))
        recomputing = sum(len(layers) for layers in plan.recompute)
        report.cases.append(Case.of(case, f"{name}, layers that recompute", "layers", [recomputing]))
        add_memory(report, f"{case}, {name}", plan, profile, [rank[name].peak_bytes for rank in found])
    for name in METHODS[:-1]:
        ratios = [theirs / ours for theirs, ours in zip(steps[name], steps["joint"], strict=True)]
        report.cases.append(Case.of(case, f"{name} / joint, paired", "ratio", ratios))
        if (plans[name].bounds, plans[name].recompute) == (plans["joint"].bounds, plans["joint"].recompute):
            report.notes.append(f"{case}: {name} and joint are the same plan; their ratio is the machine's noise")
        else:
            slower = float(np.median([1 / ratio for ratio in ratios]))
            report.checks.append(Check.below(f"{case}: joint / {name}, paired", slower, 1.05, timed=True))
    losses = [loss for rank in found for measured in rank.values() for loss in measured.losses]
    report.checks.append(Check.below(f"{case}: losses differ by", max(losses) - min(losses), 1e-4))


def add_memory(report: Report, case: str, plan: StagePlan, profile: LayerProfile, measured: Sequence[int]) -> None:
    """Predicted memory of each rank beside measured, and the cap."""
    predicted = peak_bytes(plan, profile)
    for rank, (foretold, found) in enumerate(zip(predicted, measured, strict=True)):
        report.cases.append(Case.of(case, f"rank {rank}, memory predicted", "MB", [foretold / 1e6]))
        report.cases.append(Case.of(case, f"rank {rank}, memory measured", "MB", [found / 1e6]))
    off = max(abs(foretold / found - 1) for foretold, found in zip(predicted, measured, strict=True))
    report.checks.append(Check.below(f"{case}: memory predicted, off by", off, MEMORY_LIMIT))


def step_times(plan: StagePlan, ranks: Sequence[Sequence[Sequence[TimedAction]]]) -> list[float]:
    """Seconds of each step, its schedule played back with measured times."""
    count = len(ranks[0])
    return [played_back(plan, [action for rank in ranks for action in rank[step]]) for step in range(count)]


def played_back(plan: StagePlan, actions: Sequence[TimedAction]) -> float:
    """Seconds from the first forward to the last backward if each takes its time and waits for what it needs."""
    taken = {Action(each.stage, each.backward, each.micro_batch): each.compute_ns for each in actions}
    waiting = rank_actions(plan.schedule, plan.ranks, plan.chunks, plan.micro_batches)
    stages, clock, ended = len(plan.bounds) - 1, [0] * plan.ranks, dict[Action, int]()
    while len(ended) < len(taken):
        for rank, order in enumerate(waiting):
            while order and (needed := before(order[0], stages)) <= ended.keys():
                action = order.pop(0)
                begins = max([clock[rank], *(ended[other] for other in needed)])
                clock[rank] = ended[action] = begins + taken[action]
    return max(clock) / 1e9


def before(action: Action, stages: int) -> set[Action]:
    """What another stage must have done first."""
    if not action.backward:
        return {Action(action.stage - 1, False, action.micro_batch)} if action.stage else set()
    last = action.stage == stages - 1
    return {Action(action.stage if last else action.stage + 1, not last, action.micro_batch)}


def profiled(group: dist.ProcessGroup, size: Size) -> LayerProfile:
    """The profile of the model, measured on this rank."""
    model = built(size)
    batches = micro_batches(model, size)
    denominator = sum(float(batch.loss_weights.sum()) for batch in batches)

    def loss_of(wrapped: Any, batch: PackedBatch) -> torch.Tensor:
        return step_loss(wrapped(batch).loss, batch.loss_weights, denominator)

    return profile_layers(BalancedVLM(model, group), batches[:2], loss_of, optimizer_bytes=0)


def run_plans(
    group: dist.ProcessGroup, plans: Mapping[str, StagePlan], size: Size, repeats: int
) -> dict[str, Measured]:
    """Steps of every plan by turns on this rank, after one that is not counted."""
    mesh = init_device_mesh("cpu", (1, group.size()), mesh_dim_names=("data", "pipe"))
    pipelines = {name: PipelinedVLM(built(size), plan, mesh) for name, plan in plans.items()}
    batches = micro_batches(built(size), size)
    found = {}
    for name, pipeline in pipelines.items():
        pipeline.step(batches)
        peak = pipeline.step(batches, measure="memory").peak_bytes
        assert peak is not None
        found[name] = Measured(actions=[], losses=[], peak_bytes=peak)
    for _ in range(repeats):
        for name, pipeline in pipelines.items():
            step = pipeline.step(batches, measure="time")
            found[name].actions.append(step.actions)
            found[name].losses.append(step.loss)
    return found


def built(size: Size) -> Any:
    """A model whose vision layers cost more than its language layers; equal weights each time."""
    vision = {
        "depth": size.vision_layers,
        "hidden_size": size.width,
        "intermediate_size": 3 * size.width,
        "num_heads": 4,
        "out_hidden_size": size.width,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [size.vision_layers // 2 - 1, size.vision_layers - 1],
    }
    text = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": size.width,
        "intermediate_size": 3 * size.width,
        "num_hidden_layers": size.language_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections(size.width // 8)},
        **text_token_ids(),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **visual_token_ids())
        return Qwen2_5_VLForConditionalGeneration(config).train()


def sections(frequencies: int) -> list[int]:
    """How the rotary frequencies are shared between time, height and width."""
    third = frequencies * 3 // 8
    return [frequencies - 2 * third, third, third]


def micro_batches(model: Any, size: Size) -> list[PackedBatch]:
    """One sample each: an image, sizes a little different, and text."""
    draw = torch.Generator().manual_seed(0)
    grids = [(size.side, size.side - 2 * (number % 2)) for number in range(size.micro_batches)]
    return [micro_batch(model, height, width, draw) for height, width in grids]


def micro_batch(model: Any, height: int, width: int, draw: torch.Generator) -> PackedBatch:
    config, visual_tokens = model.config, height * width // 4
    image = [config.vision_start_token_id, *[config.image_token_id] * visual_tokens, config.vision_end_token_id]
    ids = torch.cat([torch.tensor(image), torch.randint(3, 90, (visual_tokens // 4,), generator=draw)])
    types = (ids == config.image_token_id).long()
    grid = torch.tensor([[1, height, width]])
    positions = rope_positions(model, ids, types, grid, torch.zeros(1, dtype=torch.bool), torch.ones(1))
    loss_positions = torch.arange(len(ids) - 17, len(ids) - 1)
    rows = np.arange(visual_tokens)
    return PackedBatch(
        input_ids=ids[None],
        position_ids=positions[:, None],
        packed_lengths=(len(ids),),
        sequence_groups=(),
        loss_positions=loss_positions,
        targets=ids[loss_positions + 1],
        loss_weights=torch.ones(len(loss_positions)),
        loss_rows=torch.zeros_like(loss_positions),
        loss_places=torch.arange(len(loss_positions)),
        pixel_values=torch.randn(height * width, 3 * 2 * 14 * 14, generator=draw),
        unit_grid_thw=grid,
        visual_is_video=torch.zeros(visual_tokens, dtype=torch.bool),
        visual_route=LocalRoute(
            send_rows=rows,
            send_splits=(visual_tokens,),
            receive_splits=(visual_tokens,),
            receive_rows=rows,
            result_rows=visual_tokens,
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
