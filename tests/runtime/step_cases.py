"""Steps of random samples for tests: with images, videos, both, several, none."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trimtab.loader.collate import PackableSample
from trimtab.runtime.positions import rope_positions
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual
from trimtab.schema.plans import StepPlan, VisionUnits

MERGE = 2


def visual(kind: Any, grid_t: int, grid_h: int, grid_w: int) -> Visual:
    return Visual(kind=kind, grid_t=grid_t, grid_h=grid_h, grid_w=grid_w, source="none", seconds=float(grid_t))


MIXED = (
    (5, (visual("image", 1, 4, 6),)),
    (9, ()),
    (4, (visual("video", 3, 4, 4), visual("image", 1, 2, 2))),
    (7, (visual("image", 1, 8, 4), visual("image", 1, 2, 6), visual("video", 2, 2, 4))),
    (3, ()),
    (6, (visual("video", 5, 4, 2),)),
    (11, (visual("image", 1, 12, 8),)),
)


def groups_of(visual: Visual, family: str) -> int:
    """Runs of placeholders a visual is written as: Qwen3-VL writes each temporal patch of a video apart."""
    return visual.grid_t if visual.kind == "video" and family == "qwen3_vl" else 1


def batch_of(cases: Any, family: str = "qwen2_5_vl", *, loss_tokens: int = 2) -> BatchMetadata:
    """A step whose samples have ``(text tokens, visuals)``; two more text tokens surround each run of placeholders."""
    samples = [
        SampleMetadata(
            sample_id=f"sample-{row}",
            text_tokens=text + 2 * sum(groups_of(v, family) for v in visuals),
            loss_tokens=loss_tokens,
            visuals=visuals,
        )
        for row, (text, visuals) in enumerate(cases)
    ]
    return BatchMetadata.from_samples(samples, MERGE)


def shuffled_plan(batch: BatchMetadata, *, ranks: int, micro_batches: int, seed: int) -> StepPlan:
    """A legal plan nobody would choose: samples and single frames anywhere."""
    draw = np.random.default_rng(seed)
    micro_batch = draw.integers(0, micro_batches, len(batch))
    frames = batch.grid_thw[:, 0]
    visual = np.repeat(np.arange(batch.num_visuals), frames)
    frame = np.concatenate([np.arange(n) for n in frames]) if len(frames) else np.empty(0, dtype=np.int64)
    loads = np.zeros((micro_batches, ranks), dtype=np.int64)
    return StepPlan(
        ranks=ranks,
        micro_batches=micro_batches,
        rank=draw.integers(0, ranks, len(batch)),
        degree=np.ones(len(batch), dtype=np.int64),
        micro_batch=micro_batch,
        units=VisionUnits(
            visual=visual,
            frame_start=frame,
            frame_stop=frame + 1,
            rank=draw.integers(0, ranks, len(visual)),
            micro_batch=micro_batch[batch.sample_of_visual[visual]] if len(visual) else visual,
        ),
        language_ns=loads,
        vision_ns=loads,
        step_ns=0,
        current_step_ns=0,
        lower_bound_ns=0,
        sync="layer",
        denominators={},
    )


class Samples:
    """Random tensors for a batch, as a loader would give them, and as the stock model takes them."""

    def __init__(self, model: Any, cases: Any, *, loss_tokens: int = 2, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.model, self.config = model, model.config
        self.family = model.config.model_type
        self.batch = batch_of(cases, self.family, loss_tokens=loss_tokens)
        vision = self.config.vision_config
        self.patch_dim = 3 * vision.temporal_patch_size * vision.patch_size**2
        self.dtype = model.dtype
        self.tokens, self.types, self.pixels = [], [], []
        for text, visuals in cases:
            ids, types = self._sequence(text, visuals)
            self.tokens.append(ids)
            self.types.append(types)
            self.pixels.append([torch.randn(v.patches, self.patch_dim, generator=self.generator) for v in visuals])
        self.loss_tokens = loss_tokens
        self.cases = cases

    def packable(self) -> dict[int, PackableSample]:
        return {row: self._packable(row) for row in range(len(self.cases))}

    def unit_patches(self, plan: Any, rank: int, micro_batch: int) -> list[np.ndarray]:
        flat = [pixels for sample in self.pixels for pixels in sample]
        patches = []
        for unit in plan.unit_rows(rank, micro_batch):
            row = int(plan.units.visual[unit])
            frame = int(self.batch.grid_thw[row, 1:].prod())
            begin, end = int(plan.units.frame_start[unit]), int(plan.units.frame_stop[unit])
            patches.append(flat[row][begin * frame : end * frame].numpy())
        return patches

    def stock_inputs(self, row: int) -> dict[str, Any]:
        """Keyword arguments of the unmodified model for one sample."""
        _, visuals = self.cases[row]
        inputs: dict[str, Any] = {
            "input_ids": self.tokens[row][None],
            "position_ids": self._positions(row)[:, None],
            "use_cache": False,
        }
        for kind, key, grid in (("image", "pixel_values", "image"), ("video", "pixel_values_videos", "video")):
            chosen = [i for i, v in enumerate(visuals) if v.kind == kind]
            if chosen:
                inputs[key] = torch.cat([self.pixels[row][i] for i in chosen])
                grids = [(visuals[i].grid_t, visuals[i].grid_h, visuals[i].grid_w) for i in chosen]
                inputs[f"{grid}_grid_thw"] = torch.tensor(grids)
        return inputs

    def _packable(self, row: int) -> PackableSample:
        weights = torch.zeros(len(self.tokens[row]))
        weights[len(weights) - self.loss_tokens :] = 1.0
        return PackableSample(input_ids=self.tokens[row], position_ids=self._positions(row), loss_weights=weights)

    def _positions(self, row: int) -> torch.Tensor:
        own = self.batch.take([row])
        seconds = torch.ones(own.num_visuals)
        return rope_positions(
            self.model,
            self.tokens[row],
            self.types[row],
            torch.from_numpy(own.grid_thw),
            torch.from_numpy(own.is_video),
            seconds,
        )

    def _sequence(self, text: int, visuals: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids: list[int] = []
        types: list[int] = []
        for v in visuals:
            token, kind = (self.config.video_token_id, 2) if v.kind == "video" else (self.config.image_token_id, 1)
            groups = groups_of(v, self.family)
            for _ in range(groups):
                count = v.patches // MERGE**2 // groups
                ids += [self.config.vision_start_token_id, *[token] * count, self.config.vision_end_token_id]
                types += [0, *[kind] * count, 0]
        ids += torch.randint(3, 90, (text,), generator=self.generator).tolist()
        types += [0] * text
        return torch.tensor(ids), torch.tensor(types)
