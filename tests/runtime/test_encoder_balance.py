"""Encoder balance: outputs come back in their order, bit for bit, and gradients are those of one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.balanced_loop import costs_of, forward_loss, gradients, wrapped
from tests.runtime.host_batches import LOSS_TOKENS, HostData, assert_same, reference
from tests.runtime.step_cases import MIXED, visual
from torch import Tensor, nn

from trimtab.errors import MetadataError, RankDisagreementError, SettingsError
from trimtab.planning.encoder_balance import plan_encoder, route_pixels
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings
from trimtab.runtime.vision_balance import balance_encoder, balance_model_vision
from trimtab.testing import RankPool, run_threads

TEXT_ONLY = ((5, ()), (9, ()), (4, ()), (30, ()))
NO_IMAGE_ON_ONE = ((5, ()), (9, ()), (4, (visual("video", 5, 4, 4),)), (3, (visual("image", 1, 8, 8),)))


class MeanPool(nn.Module):
    """Every row of a frame depends on that frame alone, in sums whose order does not change with the batch."""

    spatial_merge_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, pixel_values: Tensor, grid_thw: Tensor) -> list[Tensor]:
        frames = [(h * w,) * t for t, h, w in grid_thw.tolist()]
        parts = pixel_values.split([rows for each in frames for rows in each])
        rows = torch.cat([part.view(-1, 4, part.shape[1]).sum(1) + part.sum(0) for part in parts])
        return [rows * self.scale, rows.sin()]


def visuals_of(rank: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng([rank, seed])
    count = 0 if (rank + seed) % 3 == 0 else int(draw.integers(1, 6))
    grids = np.stack([draw.integers(1, 5, count), 2 * draw.integers(1, 6, count), 2 * draw.integers(1, 4, count)], 1)
    pixels = draw.standard_normal((int(grids.prod(axis=1).sum()), 6))
    return torch.from_numpy(pixels), torch.from_numpy(grids)


@pytest.mark.parametrize("strategy", ["frames", "images", "loongforge"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_outputs_and_gradients_return_in_order_bit_for_bit(strategy: Any, seed: int) -> None:
    """The pixels get gradients here, as those of a partly trained encoder's inputs would."""

    def run(group: dist.ProcessGroup) -> tuple[list[Tensor], Tensor, int]:
        encoder = MeanPool()
        settings = EncoderBalanceSettings(strategy=strategy, threshold=0)
        hooks = balance_encoder(encoder, group, settings, frame_cost=lambda grids: grids.prod(axis=1) ** 2)
        pixels, grids = visuals_of(group.rank(), seed)
        pixels.requires_grad_()
        outputs = encoder(pixels, grids)
        loss = sum((output * torch.arange(len(output))[:, None]).sum() for output in outputs)
        hooks.link(loss + encoder.scale * 0).backward()
        grad = torch.zeros_like(pixels) if pixels.grad is None else pixels.grad  # none where an empty rank kept all
        return [output.detach() for output in outputs], grad, hooks.exchange.totals.applied

    for rank, (outputs, grad, applied) in enumerate(run_threads(4, run)):
        assert applied or strategy == "loongforge"
        pixels, grids = visuals_of(rank, seed)
        pixels.requires_grad_()
        if not len(grids):
            assert [len(output) for output in outputs] == [0, 0]
            continue
        expected = MeanPool()(pixels, grids)
        sum((output * torch.arange(len(output))[:, None]).sum() for output in expected).backward()
        assert all(torch.equal(output, wanted) for output, wanted in zip(outputs, expected, strict=True))
        assert torch.equal(grad, pixels.grad)


def test_no_visual_on_any_rank_gives_empty_outputs_and_zero_gradients() -> None:
    def run(group: dist.ProcessGroup) -> tuple[int, float]:
        encoder = MeanPool()
        hooks = balance_encoder(encoder, group, merge_size=2)
        outputs = encoder(torch.zeros(0, 6, dtype=torch.float64), grid_thw=torch.zeros(0, 3, dtype=torch.int64))
        hooks.link(torch.ones((), dtype=torch.float64, requires_grad=True) * 1).backward()
        assert encoder.scale.grad is not None
        return len(outputs[0]), float(encoder.scale.grad)

    assert run_threads(3, run) == [(0, 0.0)] * 3


def test_hooks_can_be_taken_out_and_leave_parameter_names_alone() -> None:
    def run(group: dist.ProcessGroup) -> list[str]:
        encoder = MeanPool()
        hooks = balance_encoder(encoder, group)
        hooks.remove()
        encoder(*visuals_of(1, 0))  # alone: no collective is left
        return list(encoder.state_dict())

    assert run_threads(1, run) == [["scale"]]


def test_off_is_off_and_observing_moves_nothing() -> None:
    def run(group: dist.ProcessGroup) -> list[int]:
        moved = []
        for mode in ("off", "observe"):
            encoder = MeanPool()
            hooks = balance_encoder(encoder, group, EncoderBalanceSettings(mode=mode))
            encoder(*visuals_of(1 + group.rank(), 0))
            moved += [hooks.exchange.totals.moved_bytes, hooks.exchange.totals.steps]
        return moved

    assert run_threads(2, run) == [[0, 0, 0, 1]] * 2


def test_grids_that_match_no_pixels_raise_on_every_rank() -> None:
    def run(group: dist.ProcessGroup) -> str:
        encoder = MeanPool()
        balance_encoder(encoder, group)
        pixels, grids = visuals_of(1, 0)
        with pytest.raises(MetadataError) as raised:
            encoder(pixels[: len(pixels) - (group.rank() == 1)], grids)
        return str(raised.value)

    assert len(set(run_threads(2, run))) == 1


def test_settings_that_differ_raise_on_every_rank() -> None:
    def run(group: dist.ProcessGroup) -> None:
        with pytest.raises(RankDisagreementError, match=r"warmup_steps \(rank 0: 0, rank 1: 1\)"):
            balance_encoder(MeanPool(), group, EncoderBalanceSettings(warmup_steps=group.rank()))

    run_threads(2, run)


def test_an_encoder_without_merge_size_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="merge_size"):
        balance_encoder(nn.Linear(2, 2), None)  # type: ignore[arg-type]


def test_more_ranks_than_visuals_and_a_thousand_ranks_are_planned() -> None:
    grids = np.array([[1, 4, 4], [3, 8, 8]], dtype=np.int64)
    owner = np.array([0, 0], dtype=np.int64)
    plan = plan_encoder(grids, grids[:, 0] > 1, owner, grids[:, 1] * grids[:, 2], 1024)
    assert plan.load_ns.max() == plan.bound_ns == 64
    route = route_pixels(plan.units, grids, owner, 1024)
    assert route.destination_rows.sum() == route.source_rows.sum() == 208


@cache
def expected(family: str, cases: Any, frozen: bool) -> Any:
    return reference(family, cases, frozen=frozen)


def train_step(
    group: dist.ProcessGroup, family: str, cases: Any, rows: Any, host: str, option: str, balance_batches: bool
) -> tuple[float, dict[str, np.ndarray]]:
    data = HostData(family, cases, frozen=option == "frozen")
    if option == "partly frozen":
        data.model.model.visual.patch_embed.requires_grad_(False)
    if option == "recompute":
        data.model.train()
        data.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    own_group = dist.new_group(backend="gloo")
    hooks = balance_model_vision(data.model, own_group, EncoderBalanceSettings(threshold=0))
    model = wrapped(data.model, host, group.size())
    settings = BalancerSettings(
        mode="on" if balance_batches else "off", threshold=0, plan=PlanSettings(balance_vision=True),
        every_rank_encodes=False,
    )  # fmt: skip
    balancer = BatchBalancer.for_model(data.model.config, group, settings, cost_model=costs_of)
    loss_sum = torch.zeros((), dtype=torch.float64)
    for step in balancer.steps([data.padded(each) for each in rows[group.rank()]], micro_batches=len(rows[0])):
        for batch in step.micro_batches:
            loss = forward_loss(model, batch, LOSS_TOKENS * len(cases), "padded")
            (loss * (group.size() if host != "plain" else 1.0)).backward()
            loss_sum += loss.detach()
    dist.all_reduce(loss_sum, group=group)
    assert hooks.exchange.totals.steps == len(rows[0])
    return float(loss_sum), dict(gradients(data.model, group, host))


SPLIT = [[[0, 2, 3], [6, 1]], [[4], [5]]]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("host", ["fsdp", "ddp"])
def test_models_agree_with_one_process(rank_pool: RankPool, family: str, host: str) -> None:
    found = rank_pool.run(2, train_step, family, MIXED, SPLIT, host, "trained", False)
    assert_same(found, expected(family, MIXED, False))


@pytest.mark.parametrize("option", ["frozen", "recompute", "partly frozen"])
def test_partly_trained_and_recomputed_encoders(rank_pool: RankPool, option: str) -> None:
    found = rank_pool.run(2, train_step, "qwen3_vl", MIXED, SPLIT, "fsdp", option, False)
    loss, grads = expected("qwen3_vl", MIXED, option == "frozen")
    if option == "partly frozen":
        grads = {name: grad for name, grad in grads.items() if "patch_embed" not in name}
    assert_same(found, (loss, grads))
    assert option == "recompute" or not any("patch_embed" in name for name in found[0][1])


@pytest.mark.parametrize("host", ["fsdp", "ddp"])
@pytest.mark.parametrize("cases", [TEXT_ONLY, NO_IMAGE_ON_ONE], ids=["no visual anywhere", "no visual on one rank"])
def test_ranks_without_visuals(rank_pool: RankPool, host: str, cases: Any) -> None:
    found = rank_pool.run(2, train_step, "qwen2_5_vl", cases, [[[0, 1]], [[2, 3]]], host, "trained", False)
    assert_same(found, expected("qwen2_5_vl", cases, False))


def test_both_balances_together(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, train_step, "qwen3_vl", MIXED, SPLIT, "fsdp", "trained", True)
    assert_same(found, expected("qwen3_vl", MIXED, False))
