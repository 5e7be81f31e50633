"""A training loop of your own in which ranks share long sequences: a degree for every sample, planned anew each step.

    torchrun --nproc-per-node 2 examples/shared_sequences_loop.py

One video conversation is longer than all others of a step together, so ranks share it and take the short ones whole.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.cost.analytic import analytic_costs
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.from_config import architecture_from_config
from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.collate import PackableSample, needed_rows, pack
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.positions import rope_positions
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.schema.plans import StepPlan
from trimtab.training.sequence_parallel import NOMINAL_CLUSTER, degree_costs, sequence_nodes

GRID, SHORT = (16, 8, 8), 40  # temporal patches, height and width of the video; tokens of a short sample


def metadata(ranks: int) -> BatchMetadata:
    """What is planned with: sizes alone, no pixel."""
    frames, height, width = GRID
    video = Visual(kind="video", source="", grid_t=frames, grid_h=height, grid_w=width)
    long = SampleMetadata(sample_id="long", text_tokens=24, loss_tokens=20, visuals=(video,))
    short = [
        SampleMetadata(sample_id=f"short-{number}", text_tokens=SHORT, loss_tokens=20, visuals=())
        for number in range(3 * ranks)
    ]
    return BatchMetadata.from_samples([long, *short], merge_size=2)


def sample(model: Any, batch: BatchMetadata, row: int, step: int) -> PackableSample:
    """The text side of a sample; its last 20 tokens are learned."""
    config, draw = model.config, torch.Generator().manual_seed(1000 * step + row)
    own = np.flatnonzero(batch.sample_of_visual == row)
    visual = [config.video_token_id] * int(sum(math.prod(batch.grid_thw[v]) // 4 for v in own))
    text = torch.randint(3, 90, (int(batch.tokens[row]) - len(visual),), generator=draw)
    ids = torch.cat([text[:2], torch.tensor(visual, dtype=torch.int64), text[2:]])
    types = 2 * (ids == config.video_token_id).long()
    grids = torch.from_numpy(batch.grid_thw[own])
    positions = rope_positions(model, ids, types, grids, torch.ones(len(own), dtype=torch.bool), torch.ones(len(own)))
    weights = torch.zeros(len(ids))
    weights[-20:] = 1.0
    return PackableSample(input_ids=ids, position_ids=positions, loss_weights=weights)


def frames_of(plan: StepPlan, unit: int, values: int, step: int) -> NDArray[np.float32]:
    """The patches of a run of frames: read what the plan gives this rank, nothing else."""
    _, height, width = GRID
    first, last = int(plan.units.frame_start[unit]), int(plan.units.frame_stop[unit])
    drawn = [np.random.default_rng([step, frame]).normal(size=(height * width, values)) for frame in range(first, last)]
    return np.concatenate(drawn).astype(np.float32)


def packs(model: Any, plan: StepPlan, batch: BatchMetadata, rank: int, step: int) -> list[PackedBatch]:
    """What this rank runs: slices of shared sequences, whole samples, frames to encode."""
    values = 3 * model.config.vision_config.temporal_patch_size * model.config.vision_config.patch_size**2
    samples = {int(row): sample(model, batch, int(row), step) for row in needed_rows(plan, batch, rank)}
    return [
        pack(
            plan, batch, rank, micro_batch, samples,
            [frames_of(plan, int(unit), values, step) for unit in plan.unit_rows(rank, micro_batch)],
            patch_dim=values, pad_token=0, placeholders=(model.config.image_token_id, model.config.video_token_id),
        )
        for micro_batch in range(plan.micro_batches)
    ]  # fmt: skip


def train(max_degree: int, steps: int = 3) -> tuple[list[float], list[int]]:
    """A few optimizer steps; the loss of each, and the degrees of the last plan."""
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=300)
    whole: Any = tiny_model("qwen2_5_vl").train()
    architecture = architecture_from_config(whole.config.to_dict())
    nodes = sequence_nodes(architecture.language, ranks, max_degree=max_degree, timeout_s=300)
    model = shard(BalancedVLM(whole, ranks.data, nodes=nodes), ranks.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    add_degrees = degree_costs(architecture.language, NOMINAL_CLUSTER, ranks=ranks.size, max_degree=max_degree)
    settings = PlanSettings(strategy="adaptive" if max_degree > 1 else "whole-sample", max_degree=max_degree)
    losses, degrees = [], []
    for step in range(steps):
        batch = metadata(ranks.size)
        plan = plan_step(
            batch, add_degrees(batch, analytic_costs(batch, architecture, NOMINAL_DEVICE)), ranks.size, settings
        )
        total = torch.zeros(())
        for own in packs(whole, plan, batch, ranks.rank, step):
            loss = step_loss(model(own).loss, own.loss_weights, float(batch.loss_tokens.sum()))
            (loss * gradient_scale(ranks.size)).backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, group=ranks.control)
        losses.append(float(total))
        degrees = plan.degree.tolist()
    return losses, degrees


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found, chosen = train(max_degree=dist.get_world_size())
    if dist.get_rank() == 0:
        print(f"losses {found}; degrees {chosen}")
    dist.destroy_process_group()
