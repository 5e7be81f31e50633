"""Sequence-parallel degrees mixed in one forward leave loss and gradients those of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.sharded_cases import (
    NESTED_TEXT,
    NESTED_VISUAL,
    ON_FOUR,
    VLMS,
    Case,
    assert_same,
    packs_of,
    reference,
    run_sharded,
    scorer,
)
from torch import Tensor

from trimtab.errors import SettingsError
from trimtab.testing import RankPool

MODELS = ("text", *VLMS)
ONE_IN_FOUR = ((4, 0, 0), (2, 0, 0), (1, 0, 0))
"""The third and fourth rank hold a slice of one sample, or nothing at all where it has no token for them."""


def check(pool: RankPool, ranks: int, case: Case, tolerance: float = 1e-12) -> None:
    assert_same(pool.run(ranks, run_sharded, case, timeout_s=110), reference(case), tolerance=tolerance)


def case_of(model: str, **changed: Any) -> Case:
    visual = {} if model == "text" else {"cases": NESTED_VISUAL}
    return Case(model=model, **{**visual, **changed})


@pytest.mark.parametrize("model", MODELS)
def test_nested_degrees_on_four_ranks(rank_pool: RankPool, model: str) -> None:
    check(rank_pool, 4, case_of(model, placed=ON_FOUR))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_nested_degrees_on_eight_ranks(rank_pool: RankPool, model: str) -> None:
    check(rank_pool, 8, case_of(model))
    check(rank_pool, 8, case_of(model, dtype=torch.float32), tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("heads", "kv_heads", "degree"), [(8, 2, 8), (8, 2, 2), (8, 8, 8), (8, 1, 8)])
def test_kv_heads_of_every_number(rank_pool: RankPool, model: str, heads: int, kv_heads: int, degree: int) -> None:
    placed = tuple((degree, 8 // degree * degree - degree, 0) for _ in range(3))
    cases = NESTED_TEXT[:3] if model == "text" else NESTED_VISUAL[:3]
    check(rank_pool, 8, Case(model=model, cases=cases, placed=placed, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("empty", ["plain", "FSDP", "no visual anywhere", "frozen embeddings"])
@pytest.mark.slow
def test_ranks_without_tokens(rank_pool: RankPool, empty: str) -> None:
    cases = ((3, ()), (1, ()), (9, ())) if empty == "no visual anywhere" else ((1, ()), *NESTED_VISUAL[:2])
    case = Case(model="qwen3_vl", cases=cases, placed=ONE_IN_FOUR, fsdp=empty != "plain", loss_tokens=1)
    check(rank_pool, 4, replace(case, prepare=freeze_embeddings) if empty == "frozen embeddings" else case)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fsdp", [False, True])
def test_ranks_without_tokens_among_eight(rank_pool: RankPool, model: str, fsdp: bool) -> None:
    cases = NESTED_TEXT[:3] if model == "text" else ((1, ()), *NESTED_VISUAL[:2])
    placed = ((8, 0, 0), (2, 4, 0), (1, 1, 0))
    for how in (None, "plain", "reentrant"):
        check(rank_pool, 8, Case(model=model, cases=cases, placed=placed, fsdp=fsdp, recompute=how))


@pytest.mark.parametrize("model", MODELS)
def test_uneven_tokens_over_two_micro_batches_are_one_big_batch(rank_pool: RankPool, model: str) -> None:
    cases = ((40, ()), (1, ()), *(NESTED_TEXT[:3] if model == "text" else NESTED_VISUAL[:3]))
    placed = ((1, 0, 0), (1, 1, 0), (4, 0, 1), (2, 2, 1), (2, 0, 0))
    case = Case(model=model, cases=cases, placed=placed, micro_batches=2, fsdp=True, loss_tokens=30)
    check(rank_pool, 4, case)


def test_a_local_mean_would_not_be_the_same(rank_pool: RankPool) -> None:
    case = Case(placed=ON_FOUR)
    loss, _ = reference(case)
    means = rank_pool.run(4, local_mean, case)
    assert abs(sum(means) / 4 - loss) > 1e-3 * loss


def local_mean(group: dist.ProcessGroup, case: Case) -> float:
    model = scorer(case, group)
    samples = case.samples(case.built())
    (batch,) = packs_of(case, samples, case.plan(samples.batch, 4), group.rank())
    with torch.no_grad():
        return float(model(batch).sum() / max(1, len(batch.targets)))


@pytest.mark.parametrize("model", ["text", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
def test_recomputation_gives_the_same_gradients_bit_for_bit(rank_pool: RankPool, model: str) -> None:
    kept = rank_pool.run(4, run_sharded, case_of(model, placed=ON_FOUR))
    for how in ("reentrant", "plain", "no early stop"):
        again = rank_pool.run(4, run_sharded, case_of(model, placed=ON_FOUR, recompute=how))
        for (loss, grads), (loss_again, grads_again) in zip(kept, again, strict=True):
            assert loss == loss_again, how
            assert all(np.array_equal(grad, grads_again[name]) for name, grad in grads.items()), how


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", ["reentrant", "plain", "no early stop"])
def test_recomputation_on_eight_sharded_ranks(rank_pool: RankPool, model: str, how: str) -> None:
    check(rank_pool, 8, case_of(model, fsdp=True, recompute=how))


def test_recomputing_attention_alone_is_refused(rank_pool: RankPool) -> None:
    case = Case(model="qwen3_vl", cases=NESTED_VISUAL, placed=ON_FOUR, heads=4, kv_heads=2)
    errors = rank_pool.run(4, run_attention_recomputed, case, return_exceptions=True)
    assert all(isinstance(error, SettingsError) for error in errors), errors
    assert "self_attn is recomputed apart from its layer" in str(errors[0])


def run_attention_recomputed(group: dist.ProcessGroup, case: Case) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = scorer(case, group)
    for layer in model.base.model.language_model.layers:
        layer.self_attn = checkpoint_wrapper(layer.self_attn)
    samples = case.samples(case.built())
    model(packs_of(case, samples, case.plan(samples.batch, 4), group.rank())[0])


def freeze_embeddings(model: Any) -> Any:
    model.get_input_embeddings().requires_grad_(False)
    return model


def train_merger_alone(model: Any) -> Any:
    model.requires_grad_(False)
    model.model.visual.merger.requires_grad_(True)
    return model


def freeze_first_layers(model: Any) -> Any:
    freeze_embeddings(model)
    layers = model.model.language_model.layers if hasattr(model.model, "visual") else model.model.layers
    layers[:2].requires_grad_(False)
    if hasattr(model.model, "visual"):
        model.model.visual.requires_grad_(False)
    return model


def adapt_queries(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=r".*language_model.*q_proj", init_lora_weights=False)
    return get_peft_model(model, config, autocast_adapter_dtype=False)


FROZEN = {"merger alone": train_merger_alone, "first layers": freeze_first_layers, "LoRA on queries": adapt_queries}
NO_TOWER = (("text", "merger alone"), ("text", "LoRA on queries"))


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.slow
def test_parts_that_are_frozen(rank_pool: RankPool, frozen: str) -> None:
    check(rank_pool, 4, case_of("qwen3_vl", placed=ON_FOUR, prepare=FROZEN[frozen]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "frozen"), [(model, frozen) for model in MODELS for frozen in FROZEN if (model, frozen) not in NO_TOWER]
)
@pytest.mark.parametrize("fsdp", [False, True])
def test_parts_that_are_frozen_on_eight_ranks(rank_pool: RankPool, model: str, frozen: str, fsdp: bool) -> None:
    for how in (None, "plain", "reentrant"):
        if how == "reentrant" and frozen != "merger alone":
            continue  # recomputes nothing where no input of a layer has a gradient, sharded or not
        check(rank_pool, 8, case_of(model, fsdp=fsdp, recompute=how, prepare=FROZEN[frozen]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_plans_with_ranks_that_dawdle(rank_pool: RankPool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    degree = draw.choice([1, 2, 4, 8], len(NESTED_TEXT))
    placed = tuple((int(p), int(draw.integers(0, 8)) // int(p) * int(p), int(draw.integers(0, 2))) for p in degree)
    model = MODELS[seed % 3]
    check(rank_pool, 8, case_of(model, placed=placed, micro_batches=2, jitter_s=0.02, fsdp=bool(seed % 2)))


@pytest.mark.slow
def test_changing_one_sample_leaves_the_others_bitwise_alone(rank_pool: RankPool) -> None:
    for model in ("text", "qwen2_5_vl"):
        case = case_of(model, placed=ON_FOUR, loss_tokens=4)
        for ranks in zip(*(rank_pool.run(4, token_losses, case, changed) for changed in (None, 3)), strict=True):
            for row in ranks[0]:
                if row != 3:
                    assert torch.equal(ranks[0][row], ranks[1][row]), (model, row)
                else:
                    assert not torch.equal(ranks[0][row], ranks[1][row])


def token_losses(group: dist.ProcessGroup, case: Case, changed: int | None) -> dict[int, Tensor]:
    """Losses on this rank by sample, one sample's tokens changed; padding differs too."""
    model = scorer(case, group)
    samples = case.samples(case.built())
    if changed is not None:
        samples.tokens[changed] = (samples.tokens[changed] + 7) % 90
    with torch.no_grad():
        (batch,) = packs_of(case, samples, case.plan(samples.batch, 4), group.rank())
        found = model(batch)
    losses = found if isinstance(found, Tensor) else found.loss
    return {int(row): losses[batch.loss_rows == row] for row in batch.loss_rows.unique()}


def test_a_model_wrapped_without_groups_says_so(rank_pool: RankPool) -> None:
    case = Case(model="qwen2_5_vl", cases=NESTED_VISUAL[:2], placed=((2, 0, 0), (2, 0, 0)), heads=4)
    errors = rank_pool.run(2, run_without_nodes, case, return_exceptions=True)
    assert all(isinstance(error, SettingsError) and "without nodes=" in str(error) for error in errors), errors


def run_without_nodes(group: dist.ProcessGroup, case: Case) -> None:
    from trimtab.runtime.vlm import BalancedVLM

    model: Any = case.built()
    samples = case.samples(model)
    BalancedVLM(model, group)(packs_of(case, samples, case.plan(samples.batch, 2), group.rank())[0])
