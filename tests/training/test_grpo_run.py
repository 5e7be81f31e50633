"""Whole GRPO runs on real ranks: records, resume, and input that is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.training.grpo_run import SHORT, grpo_settings, train_on_rank, train_with_measured_costs
from tests.training.small_run import write_run
from transformers import AutoModelForImageTextToText

from trimtab.errors import CheckpointError, LoaderError, TrainingError
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.grpo.settings import GRPOSettings, ObjectiveSettings
from trimtab.training.settings import BalanceSettings, EvalSettings, LoraSettings

OFF = BalanceSettings(mode="off", costs="analytic")
CENTRAL, SKIP = LoaderSettings(mode="central"), LoaderSettings(on_bad_sample="skip")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("grpo"), photos=False)


def steps_of(settings: GRPOSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.folder / "steps.jsonl").read_text().splitlines()]


def weights(settings: GRPOSettings) -> dict[str, torch.Tensor]:
    return dict(AutoModelForImageTextToText.from_pretrained(settings.folder / "model").state_dict())


@pytest.mark.slow
def test_a_run_records_its_steps_and_resumes_exactly(rank_pool: RankPool, files: dict[str, Any]) -> None:
    evaluation = EvalSettings(data=files["data"], table=files["table"], samples_per_step=5)
    whole = grpo_settings(files, "whole", steps=3, evaluation=evaluation)
    assert rank_pool.run(2, train_on_rank, whole) == [True, True]
    steps = steps_of(whole)
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(step["replies"] == 15 for step in steps[:2])
    assert all(sum(step["rank_work"]["samples"]) == step["degrees"]["1"] == step["replies"] for step in steps)
    assert all(step["logprob_difference_max"] < 1e-4 for step in steps)
    assert set(steps[0]["phases_ms"]) == {"data", "rollout", "reward", "inference", "update"}
    assert all(len(step["peak_memory_bytes"]) == 2 and min(step["peak_memory_bytes"]) > 2**24 for step in steps)
    assert json.loads((whole.folder / "evaluation.json").read_text())["samples"] == 12

    parts = grpo_settings(files, "parts", steps=3, stop_after=2)
    rank_pool.run(2, train_on_rank, parts)
    rank_pool.run(2, train_on_rank, replace(parts, stop_after=None, resume=True))
    assert [step["reward_mean"] for step in steps_of(parts)] == [step["reward_mean"] for step in steps]
    after = weights(parts)
    for name, tensor in weights(whole).items():
        assert torch.equal(after[name], tensor)


@pytest.mark.slow
def test_resume_refuses_another_seed(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "refused", steps=1)
    rank_pool.run(1, train_on_rank, settings)
    with pytest.raises(CheckpointError, match="seed: was 0, now 1"):
        rank_pool.run(1, train_on_rank, replace(settings, steps=2, resume=True, seed=1))


@pytest.mark.slow
def test_resume_refuses_other_weights_of_the_same_size(rank_pool: RankPool, files: dict[str, Any]) -> None:
    first = grpo_settings(files, "first", steps=1)
    rank_pool.run(1, train_on_rank, first)
    settings = grpo_settings({**files, "model": first.folder / "model"}, "second", steps=1)
    rank_pool.run(1, train_on_rank, settings)
    weights_file = first.folder / "model" / "model.safetensors"
    tensors = load_file(weights_file)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights_file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="has changed since"):
        rank_pool.run(1, train_on_rank, replace(settings, steps=2, resume=True))


@pytest.mark.slow
def test_adapters_are_held_to_the_model_without_them(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(
        files,
        "adapters",
        steps=2,
        lora=LoraSettings(rank=2),
        balance=OFF,
        loader=CENTRAL,
        objective=ObjectiveSettings(kl_coefficient=0.1),
    )
    assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    first, second = steps_of(settings)
    assert first["kl"] == pytest.approx(0.0, abs=1e-9)
    assert second["kl"] > 0


def test_equal_rewards_are_counted_and_change_nothing(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "equal", steps=1, reward="equal")
    rank_pool.run(1, train_on_rank, settings)
    (step,) = steps_of(settings)
    assert step["equal_groups"] == 5
    assert step["grad_norm"] == 0.0


def test_a_raising_reward_ends_the_run_on_every_rank(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "raising", reward="raising")
    for error in rank_pool.run(2, train_on_rank, settings, return_exceptions=True):
        assert isinstance(error, TrainingError)
        assert "raised ValueError: no" in str(error)


def test_replies_at_the_limit_are_cut_and_counted(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "cut", steps=1, rollout=replace(SHORT, max_reply_tokens=1))
    rank_pool.run(1, train_on_rank, settings)
    (step,) = steps_of(settings)
    assert step["loss_tokens"] == 15
    assert step["cut_replies"] + step["empty_replies"] == 15


def test_bad_prompts_end_the_run_or_are_left_out_and_listed(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, photos=False)
    (tmp_path / "media" / "4-0.jpg").write_bytes(b"no image")
    settings = grpo_settings(files, "bad", steps=1, samples_per_step=12)
    for error in rank_pool.run(2, train_on_rank, settings, return_exceptions=True):
        assert isinstance(error, LoaderError)
        assert "sample-4" in str(error)
        assert "4-0.jpg" in str(error)
    short = replace(SHORT, max_prompt_tokens=45)
    skipping = replace(settings, loader=SKIP, rollout=short)
    assert rank_pool.run(2, train_on_rank, skipping) == [True, True]
    (step,) = steps_of(skipping)
    listed = json.loads((skipping.folder / "bad_samples.json").read_text())
    assert {entry["sample_id"] for entry in listed} == set(step["bad_samples"])
    assert len(step["bad_samples"]) < 12
    assert step["replies"] == 3 * (12 - len(step["bad_samples"]))
    assert any("max_prompt_tokens=45" in entry["reason"] for entry in listed)


def test_a_step_without_one_good_prompt_goes_by(rank_pool: RankPool, files: dict[str, Any]) -> None:
    rollout = replace(SHORT, max_prompt_tokens=1)
    settings = grpo_settings(files, "none", steps=2, rollout=rollout, loader=SKIP)
    assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    assert [(step["replies"], step["grad_norm"]) for step in steps_of(settings)] == [(0, None), (0, None)]
    first, second = (step["bad_samples"] for step in steps_of(settings))
    assert len(first) == 5
    listed = json.loads((settings.folder / "bad_samples.json").read_text())
    replacements = [entry["replacement"] for entry in listed if entry["joins_step"] == 1]
    assert len(replacements) == 5
    assert set(replacements) <= set(second)
    assert len(second) == 10


def test_one_rank_out_of_memory_in_rollout_ends_all(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "memory", steps=1, rollout=replace(SHORT, max_reply_tokens=5))
    for error in rank_pool.run(2, train_short_of_memory, settings, return_exceptions=True):
        assert isinstance(error, TrainingError)
        assert "rollout, rank 1: MemoryError" in str(error)
        assert "rollout.prompts_at_once" in str(error)


def train_short_of_memory(group: Any, settings: GRPOSettings) -> bool:
    from trimtab.training.grpo.transformers_engine import TransformersEngine

    if group.rank() == 1:
        generate = TransformersEngine._generate

        def fail(self: Any, *args: Any) -> Any:
            raise MemoryError("cannot allocate")

        TransformersEngine._generate = fail  # type: ignore[method-assign]
        try:
            return train_on_rank(group, settings)
        finally:
            TransformersEngine._generate = generate  # type: ignore[method-assign]
    return train_on_rank(group, settings)


@pytest.mark.slow
def test_measured_costs_plan_all_phases_and_are_kept(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "measured", steps=1, balance=BalanceSettings())
    assert rank_pool.run(2, train_with_measured_costs, settings) == [True, True]
    (progress,) = [json.loads(path.read_text()) for path in settings.folder.glob("checkpoints/*/progress.json")]
    assert progress["costs"]["language"]["b"] == pytest.approx(1e3)
    assert progress["costs"]["frame"]["b"] == pytest.approx(1e3)


def test_recorded_replies_tell_tokens_text_and_reward(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = grpo_settings(files, "recorded", steps=2, rollout=replace(SHORT, record=True))
    rank_pool.run(2, train_on_rank, settings)
    records = [json.loads(line) for line in (settings.folder / "replies.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0] * 15 + [1] * 15
    assert [record["reply"] for record in records[:3]] == [0, 1, 2]
    assert all(record["reward"] == len(record["text"]) % 7 for record in records)
    rewards = [fmean(r["reward"] for r in records if r["step"] == step) for step in (0, 1)]
    assert rewards == pytest.approx([step["reward_mean"] for step in steps_of(settings)])
