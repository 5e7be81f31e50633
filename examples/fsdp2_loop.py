"""A plain FSDP2 training loop whose ranks share the load of uneven vision-language batches.

    torchrun --nproc-per-node 2 examples/fsdp2_loop.py

The ten lines marked with "# balance" are all there is to it. Set ``mode="observe"`` to see what they would gain first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trimtab.demo.tiny_models import tiny_model
from trimtab.runtime.balancer import BatchBalancer  # balance
from trimtab.runtime.balancer_settings import BalancerSettings  # balance
from trimtab.runtime.vision_balance import balance_model_vision  # balance

MICRO_BATCHES = 2


def batches(config: Any, rank: int, count: int) -> Iterator[dict[str, torch.Tensor]]:
    """What a processor and collator give: one image and some text a sample; rank 0's are the larger ones."""
    draw = torch.Generator().manual_seed(rank)
    merge, values = config.vision_config.spatial_merge_size, 3 * 2 * config.vision_config.patch_size**2
    for _ in range(count):
        sides = [2 * int(torch.randint(1, 8 if rank == 0 else 3, (), generator=draw)) for _ in range(3)]
        tokens = [side * side // merge**2 for side in sides]
        length = max(tokens) + 12
        ids = torch.zeros(3, length, dtype=torch.int64)
        labels, mask, types = torch.full_like(ids, -100), torch.zeros_like(ids), torch.zeros_like(ids)
        for row, visual in enumerate(tokens):
            text = torch.randint(3, 90, (10,), generator=draw)
            image = torch.tensor([config.vision_start_token_id, *[config.image_token_id] * visual])
            ids[row, : visual + 12] = torch.cat([image, torch.tensor([config.vision_end_token_id]), text])
            labels[row, visual + 7 : visual + 12] = text[-5:]
            mask[row, : visual + 12] = 1
            types[row, 1 : visual + 1] = 1
        yield {
            "input_ids": ids,
            "labels": labels,
            "attention_mask": mask,
            "mm_token_type_ids": types,
            "pixel_values": torch.randn(sum(side * side for side in sides), values, generator=draw),
            "image_grid_thw": torch.tensor([[1, side, side] for side in sides]),
        }


def train(group: dist.ProcessGroup, mode: Any = "on", steps: int = 3) -> list[float]:
    """A few optimizer steps; returns the loss of each, over all ranks."""
    model: Any = tiny_model("qwen2_5_vl").train()
    mesh = init_device_mesh("cpu", (group.size(),))
    for block in [*model.model.visual.blocks, *model.model.language_model.layers]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = batches(model.config, group.rank(), steps * MICRO_BATCHES)

    control = dist.new_group(backend="gloo")  # balance
    vision = balance_model_vision(model, dist.new_group())  # balance
    config, settings = model.config, BalancerSettings(mode=mode, verbose=True)
    balancer = BatchBalancer.for_model(config, control, settings, encoder_balanced=True)  # balance
    losses = []
    for step in balancer.steps(loader, micro_batches=MICRO_BATCHES):  # balance
        total = torch.zeros(())
        for batch in step.micro_batches:  # balance
            loss = model(**batch, num_items_in_batch=step.denominator).loss  # balance
            (loss * group.size()).backward()  # FSDP averages gradients over ranks; the denominator asks for their sum
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, group=group)
        losses.append(float(total))
    if group.rank() == 0:
        print(vision.summary())  # balance
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    print(train(dist.group.WORLD))
    dist.destroy_process_group()
