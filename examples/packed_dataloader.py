"""Packs in a plain PyTorch ``DataLoader``: the training loop stays yours.

    python examples/packed_dataloader.py
    torchrun --nproc-per-node 2 examples/packed_dataloader.py

Trains a tiny Qwen2.5-VL on generated images for an epoch, every sample once, ranks equally busy in every step.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trimtab.demo.tiny_models import tiny_model
from trimtab.loader.pack_batches import PackBatchSampler, ZeroLossDataset
from trimtab.loader.pack_collate import PackCollator
from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.problem import PackProblem

SAMPLES = 24
IGNORED = -100


class Conversations:
    """A map-style dataset of what a processor would give: ids, labels, patches and grid of an image."""

    def __init__(self, image_token: int, patch_values: int) -> None:
        self._image_token, self._patch_values = image_token, patch_values
        generator = torch.Generator().manual_seed(0)
        self.sides = torch.randint(1, 8, (SAMPLES,), generator=generator)  # of the image, in merged tokens
        self.text = torch.randint(8, 60, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(row)
        side, text = int(self.sides[row]), int(self.text[row])
        words = torch.randint(3, 90, (text,), generator=generator)
        image = torch.full((side * side,), self._image_token)
        return {
            "input_ids": torch.cat([image, words]),
            "labels": torch.cat([torch.full_like(image, IGNORED), words]),
            "pixel_values": torch.randn(4 * side * side, self._patch_values, generator=generator),
            "image_grid_thw": torch.tensor([[1, 2 * side, 2 * side]]),
        }

    def sizes(self) -> dict[str, Tensor]:
        """Tokens and patches of each sample, known without loading any."""
        return {"patches": 4 * self.sides**2, "tokens": self.sides**2 + self.text}


def main() -> None:
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    model = tiny_model("qwen2_5_vl").train()
    dataset = Conversations(model.config.image_token_id, model.model.visual.patch_embed.proj.weight[0].numel())

    # what fits a device at once: at most 256 patches and 160 tokens a pack
    columns = {name: column.numpy() for name, column in dataset.sizes().items()}
    sampler = PackSampler(PackProblem.from_columns(columns, {"patches": 256, "tokens": 160}), ranks=ranks, seed=0)
    batches = PackBatchSampler(sampler, rank=rank)
    loader = DataLoader(ZeroLossDataset(dataset), batch_sampler=batches, collate_fn=PackCollator(model))

    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = 0
    for batch in loader:
        labels = batch.pop("labels")
        logits = trained(**batch).logits
        targets = torch.nn.functional.pad(labels[0, 1:], (0, 1), value=IGNORED)
        # packs hold different numbers of tokens: divide by the step's, over all ranks; DDP averages, hence * ranks
        tokens = (targets != IGNORED).sum()
        if ranks > 1:
            dist.all_reduce(tokens)
        loss = torch.nn.functional.cross_entropy(logits[0], targets, ignore_index=IGNORED, reduction="sum") / tokens
        (loss * ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
        batches.consumed()  # sampler.state_dict() belongs in your checkpoint
        held = 0 if (labels == IGNORED).all() else len(batch["packed_lengths"]) - 1  # the last is the blank image
        seen += held
        print(f"rank {rank}: {held} samples, {labels.shape[1]} tokens, share of the loss {loss.item():.3f}")
    print(f"rank {rank}: trained on {seen} of {SAMPLES} samples")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
