"""Samples joined for a pipeline give the loss and gradients of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.runtime.pipeline_cases import Run, mesh_of
from torch import Tensor

from trimtab.errors import LoaderError
from trimtab.loader.pack_collate import PackCollator
from trimtab.loader.pipeline_collate import PipelineCollator
from trimtab.runtime.pipeline import PipelinedVLM
from trimtab.testing import RankPool

LAYERS = 9


def samples_of(config: Any) -> list[dict[str, Tensor]]:
    """A video before an image, text alone, an image before a video; the middle's first label would be learned."""
    draw = torch.Generator().manual_seed(0)
    values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    grids = {config.image_token_id: (1, 4, 6), config.video_token_id: (2, 4, 4)}
    orders = ((config.video_token_id, config.image_token_id), (), (config.image_token_id, config.video_token_id))
    found = []
    for order in orders:
        parts = [torch.randint(3, 90, (7,), generator=draw)]
        sample: dict[str, Tensor] = {}
        for token in order:
            frames, height, width = grids[token]
            visual = torch.full((frames * height * width // 4,), token)
            marks = (torch.tensor([config.vision_start_token_id]), torch.tensor([config.vision_end_token_id]))
            parts += [marks[0], visual, marks[1], torch.randint(3, 90, (5,), generator=draw)]
            pixels, grid = (
                ("pixel_values_videos", "video_grid_thw")
                if token == config.video_token_id
                else ("pixel_values", "image_grid_thw")
            )
            sample[pixels] = torch.randn(frames * height * width, values, generator=draw, dtype=torch.float64)
            sample[grid] = torch.tensor([[frames, height, width]])
        ids = torch.cat(parts)
        labels = torch.where((ids >= 3) & (ids < 90), ids, -100)
        found.append({"input_ids": ids, "labels": labels, **sample})
    return found


def through_the_pipeline(group: dist.ProcessGroup) -> tuple[float, dict[str, Tensor]]:
    run = Run(bounds=(0, LAYERS), ranks=1)
    model = run.model()
    batch = PipelineCollator(model)(samples_of(model.config))
    pipeline = PipelinedVLM(model, run.plan(), mesh_of(group, 1))
    loss = pipeline.step([batch]).loss
    return loss, {name: weight.grad for name, weight in pipeline.named_parameters() if weight.grad is not None}


def two_pipelines(group: dist.ProcessGroup) -> float:
    run = Run(bounds=(0, LAYERS), ranks=1)
    model = run.model()
    collate, samples = PipelineCollator(model), samples_of(model.config)
    pipeline = PipelinedVLM(model, run.plan(), mesh_of(group, 1))
    return pipeline.step([collate(samples[:2] if group.rank() == 0 else samples[2:])]).loss


def test_pipelines_that_share_a_step_take_a_collators_batches(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(2, two_pipelines)
    ((alone, _),) = rank_pool.run(1, through_the_pipeline)
    assert first == second
    assert first == pytest.approx(alone, rel=1e-10)


def test_loss_and_gradients_are_the_whole_models(rank_pool: RankPool) -> None:
    ((loss, gradients),) = rank_pool.run(1, through_the_pipeline)
    model = Run(bounds=(0, LAYERS), ranks=1).model()
    inputs = PackCollator(model)(samples_of(model.config))
    labels = inputs.pop("labels")[0, 1:]
    expected = torch.nn.functional.cross_entropy(model(**inputs).logits[0, :-1], labels, ignore_index=-100)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-10)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-8, atol=1e-10)


def test_places_count_loss_tokens_within_each_sample() -> None:
    model = Run(bounds=(0, LAYERS), ranks=1).model()
    batch = PipelineCollator(model)(samples_of(model.config))
    for row in range(3):
        places = batch.loss_places[batch.loss_rows == row]
        assert places.tolist() == list(range(len(places)))
    assert batch.loss_rows.unique().tolist() == [0, 1, 2]


def test_visuals_without_placeholders_are_refused() -> None:
    model = Run(bounds=(0, LAYERS), ranks=1).model()
    samples = samples_of(model.config)
    samples[1] |= {"pixel_values": samples[0]["pixel_values"], "image_grid_thw": samples[0]["image_grid_thw"]}
    with pytest.raises(LoaderError, match=r"has 0 placeholders of token .*, and image_grid_thw asks for 6"):
        PipelineCollator(model)(samples)
