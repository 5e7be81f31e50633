"""A vision-language model trained as a pipeline: layers measured, stages and recomputation planned together, and run.

    torchrun --nproc-per-node 2 examples/pipeline_loop.py

Vision and language layers are cut where the stages are evenest; layers recompute only as far as the memory budget asks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.pipeline_collate import PipelineCollator
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stages import plan_stages
from trimtab.runtime.layer_profiling import largest_over_ranks, profile_layers
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.pipeline import PipelinedVLM

MICRO_BATCHES, SAMPLES = 4, 3


def samples(config: Any, step: int) -> list[dict[str, Tensor]]:
    """What a processor gives: an image and some text each; the same on every rank of a pipeline."""
    draw = torch.Generator().manual_seed(step)
    found = []
    for _ in range(MICRO_BATCHES * SAMPLES):
        side = int(torch.randint(1, 8, (), generator=draw))
        words = torch.randint(3, 90, (int(torch.randint(8, 60, (), generator=draw)),), generator=draw)
        image = torch.full((side * side,), config.image_token_id)
        values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
        found.append(
            {
                "input_ids": torch.cat([image, words]),
                "labels": torch.cat([torch.full_like(image, -100), words]),
                "pixel_values": torch.randn(4 * side * side, values, generator=draw),
                "image_grid_thw": torch.tensor([[1, 2 * side, 2 * side]]),
            }
        )
    return found


def micro_batches(collate: PipelineCollator, config: Any, step: int) -> list[PackedBatch]:
    """A step's, packed in the order samples come."""
    found = samples(config, step)
    return [collate(found[first : first + SAMPLES]) for first in range(0, len(found), SAMPLES)]


def loss_of(model: Any, batch: PackedBatch) -> Tensor:
    """The loss of one micro-batch on one rank, for measuring."""
    config = model.config
    is_image = batch.input_ids == config.image_token_id
    output = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        packed_lengths=batch.packed_lengths,
        pixel_values=batch.pixel_values,
        image_grid_thw=batch.unit_grid_thw,
        mm_token_type_ids=is_image.int(),
        use_cache=False,
    )
    logits = output.logits[0, batch.loss_positions]
    return torch.nn.functional.cross_entropy(logits, batch.targets)


def train(group: dist.ProcessGroup, steps: int = 3, memory_bytes: int = 40_000_000) -> list[float]:
    """Plan and train; returns the loss of each step."""
    model: Any = tiny_model("qwen2_5_vl").train()
    config, collate = model.config, PipelineCollator(model)

    profile = profile_layers(model, micro_batches(collate, config, 0), loss_of)
    profile = largest_over_ranks(profile, group)  # all ranks must plan alike
    problem = StageProblem(profile=profile, ranks=group.size(), micro_batches=MICRO_BATCHES, memory_bytes=memory_bytes)
    plan = plan_stages(problem)
    mesh = init_device_mesh("cpu", (1, group.size()), mesh_dim_names=("data", "pipe"))
    pipeline = PipelinedVLM(model, plan, mesh)
    del model  # the weights of other ranks' stages are freed
    if group.rank() == 0:
        print(f"stages end at layers {plan.bounds[1:]}; recomputing in each: {[len(rows) for rows in plan.recompute]}")

    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        losses.append(pipeline.step(micro_batches(collate, config, step)).loss)
        optimizer.step()
        optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    found = train(dist.group.WORLD)
    if dist.get_rank() == 0:
        print("losses", found)
    dist.destroy_process_group()
