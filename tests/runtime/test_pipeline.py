"""A pipeline's loss and gradients are those of one process, wherever it is cut and whatever recomputes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.runtime.pipeline_cases import Run, mesh_of, micro_batches, run_step
from tests.runtime.step_cases import MIXED, Samples, visual

from trimtab.runtime.pipeline import PipelinedVLM
from trimtab.testing import RankPool

NO_VISUALS = ((5, ()), (9, ()), (4, ()), (12, ()))
ONE_VISUAL = ((5, ()), (9, ()), (4, (visual("image", 1, 4, 4),)), (12, ()))


def reference(run: Run) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of the unmodified model, one sample at a time."""
    model = run.model()
    samples = Samples(model, run.cases)
    total, loss_sum = samples.loss_tokens * len(run.cases), 0.0
    for row in range(len(run.cases)):
        inputs = samples.stock_inputs(row)
        logits = model(**inputs).logits[0, -samples.loss_tokens - 1 : -1]
        loss = F.cross_entropy(logits, inputs["input_ids"][0, -samples.loss_tokens :], reduction="sum") / total
        loss.backward()
        loss_sum += float(loss.detach())
    named = dict(model.named_parameters(remove_duplicate=False))  # a tied weight by both of its names
    return loss_sum, {name: weight.grad.numpy() for name, weight in named.items() if weight.grad is not None}


def assert_as_one_process(rank_pool: RankPool, run: Run, *, world: int | None = None) -> None:
    loss, expected = reference(run)
    found: dict[str, Any] = {}
    for rank_loss, gradients in rank_pool.run(world or run.ranks, run_step, run):
        assert rank_loss == pytest.approx(loss, rel=1e-12)
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, found.setdefault(name, gradient), err_msg=f"{name} on two ranks")
    for name, gradient in expected.items():
        scale = max(np.abs(gradient).max(), 1e-3)
        np.testing.assert_allclose(found[name], gradient, atol=1e-10 * scale, err_msg=name)
    unexpected = {name for name in set(found) - set(expected) if np.abs(found[name]).max() > 0}
    assert unexpected == set()


@pytest.mark.parametrize(
    "run",
    [
        Run(bounds=(0, 2, 9), ranks=2),  # within the vision tower, windows and all
        Run(bounds=(0, 4, 9), ranks=2, recompute=True),  # between vision and language
        Run(family="qwen3_vl", bounds=(0, 1, 9), ranks=2),  # deepstack: between the layers that give features
        Run(family="qwen3_vl", bounds=(0, 5, 9), ranks=2, recompute=True),  # and between those that take them
    ],
    ids=lambda run: f"{run.family} {run.bounds}",
)
def test_two_stages(rank_pool: RankPool, run: Run) -> None:
    assert_as_one_process(rank_pool, run)


def test_interleaved_stages(rank_pool: RankPool) -> None:
    assert_as_one_process(rank_pool, Run(family="qwen3_vl", bounds=(0, 2, 4, 6, 9), ranks=2, chunks=2, recompute=True))


def test_two_pipelines_share_a_step(rank_pool: RankPool) -> None:
    assert_as_one_process(rank_pool, Run(bounds=(0, 4, 9), ranks=2), world=4)


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(1, 9))
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_cut_before_any_layer(rank_pool: RankPool, family: str, cut: int) -> None:
    assert_as_one_process(rank_pool, Run(family=family, bounds=(0, cut, 9), ranks=2, recompute=cut % 2 == 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        Run(family="qwen2_vl", bounds=(0, 1, 3, 5, 8), ranks=4),
        Run(family="qwen3_vl", bounds=(0, 1, 2, 5, 9), ranks=4, recompute=True),
        Run(bounds=(0, 1, 2, 3, 4, 5, 6, 7, 9), ranks=4, chunks=2),
        Run(bounds=(0, 3, 9), ranks=2, cases=MIXED[:1]),  # fewer micro-batches than stages: empty ones are added
    ],
    ids=lambda run: f"{run.family} {run.bounds}",
)
def test_more_stages(rank_pool: RankPool, run: Run) -> None:
    assert_as_one_process(rank_pool, run)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [NO_VISUALS, ONE_VISUAL], ids=["no visual anywhere", "one visual in the step"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_micro_batches_without_visuals(rank_pool: RankPool, family: str, cases: Any) -> None:
    run = Run(family=family, bounds=(0, 2, 6, 9), ranks=3, cases=cases, max_tokens=20)
    assert_as_one_process(rank_pool, run)


@pytest.mark.slow
def test_frozen_vision_tower(rank_pool: RankPool) -> None:
    assert_as_one_process(rank_pool, Run(bounds=(0, 2, 4, 9), ranks=3, frozen_vision=True))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_tied_embedding_and_head_on_two_ranks(rank_pool: RankPool, world: int) -> None:
    assert_as_one_process(rank_pool, Run(bounds=(0, 6, 9), ranks=2, tied=True), world=world)


def steps_of_other_sizes(group: dist.ProcessGroup, run: Run) -> list[tuple[float, int]]:
    """Losses of steps of three sizes, the first again at last, and the shapes that were kept."""
    model, mesh = run.model(), mesh_of(group, run.ranks)
    steps = [micro_batches(model, cases, 1, 0, 60) for cases in (MIXED, MIXED[:3], MIXED[3:], MIXED)]
    pipeline = PipelinedVLM(model, run.plan(), mesh, rounding=4, cached_shapes=2)
    found = []
    for batches in steps:
        found.append((pipeline.step(batches).loss, len(pipeline.cached_shapes)))
        for weight in pipeline.parameters():
            weight.grad = None
    return found


def test_steps_may_differ_in_shape(rank_pool: RankPool) -> None:
    run = Run(bounds=(0, 4, 9), ranks=2)
    expected = [reference(replace(run, cases=cases))[0] for cases in (MIXED, MIXED[:3], MIXED[3:], MIXED)]
    for steps in rank_pool.run(2, steps_of_other_sizes, run):
        assert [loss for loss, _ in steps] == pytest.approx(expected, rel=1e-12)
        assert [kept for _, kept in steps] == [1, 2, 2, 2]


def weights_of_stages(group: dist.ProcessGroup, run: Run) -> dict[str, int]:
    pipeline = PipelinedVLM(run.model(), run.plan(), mesh_of(group, run.ranks))
    return {name: weight.numel() for name, weight in pipeline.named_parameters()}


def test_every_weight_lies_on_one_rank_under_its_own_name(rank_pool: RankPool) -> None:
    run = Run(family="qwen3_vl", bounds=(0, 1, 4, 9), ranks=3)
    ranks = rank_pool.run(3, weights_of_stages, run)
    expected = {name: weight.numel() for name, weight in run.model().named_parameters()}
    assert sum(len(weights) for weights in ranks) == len(expected)
    assert {name: count for weights in ranks for name, count in weights.items()} == expected


def test_stages_share_the_models_weights() -> None:
    from trimtab.runtime.model_layers import find_layers
    from trimtab.runtime.pipeline_stage import StageModule

    model = Run(bounds=(0, 9), ranks=1).model()
    stage = StageModule(find_layers(model), 3, 6)
    originals = dict(model.named_parameters())
    held = dict(stage.model.named_parameters())
    assert held
    assert all(weight is originals[name] for name, weight in held.items())
    assert torch.equal(model.lm_head.weight, originals["lm_head.weight"])  # and the model itself is as it was
