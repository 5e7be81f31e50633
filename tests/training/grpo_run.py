"""Small GRPO runs for tests: settings over the small dataset, a reward function, and rollouts given beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.training.small_run import packs_take_a_microsecond_a_row

from trimtab.runtime.groups import Ranks, ranks_of_default_group
from trimtab.training.grpo.job import GRPOJob, build_grpo_job
from trimtab.training.grpo.loop import grpo_step, roll_out
from trimtab.training.grpo.prepare import finish_step, start_step
from trimtab.training.grpo.rollout import Reply, RolloutRequest
from trimtab.training.grpo.run import train_grpo
from trimtab.training.grpo.settings import GRPOSettings, RewardSettings, RolloutSettings
from trimtab.training.settings import BalanceSettings, OptimizerSettings
from trimtab.training.stop_signal import StopSignal

REWARD = """
def length(item):
    return float(len(item.reply) % 7)

def raising(item):
    raise ValueError("no")

def equal(item):
    return 1.0
"""
Weights = dict[str, np.ndarray]
FAST = OptimizerSettings(learning_rate=3e-3, warmup_steps=1)
SHORT = RolloutSettings(replies=3, max_reply_tokens=6, prompts_at_once=2)


def grpo_settings(files: dict[str, Any], name: str, *, reward: str = "length", **changes: Any) -> GRPOSettings:
    path = Path(files["table"]).with_name("reward.py")
    path.write_text(REWARD)
    plain: dict[str, Any] = {
        "steps": 3,
        "samples_per_step": 5,
        "name": name,
        "timeout_s": 30,
        "optimizer": FAST,
        "balance": BalanceSettings(costs="analytic"),
        "rollout": SHORT,
        "reward": RewardSettings(function=f"{path}:{reward}"),
    }
    return GRPOSettings(**{**files, **plain, **changes})


def train_on_rank(group: dist.ProcessGroup, settings: GRPOSettings) -> bool:
    return train_grpo(settings, ranks_of_default_group(torch.device("cpu"), timeout_s=30))


def train_with_measured_costs(group: dist.ProcessGroup, settings: GRPOSettings) -> bool:
    with packs_take_a_microsecond_a_row(group.rank()):
        return train_on_rank(group, settings)


class GivenReplies:
    """An engine whose replies depend on step and prompt alone, never on the model."""

    def __init__(self, ranks: Ranks, replies: int) -> None:
        self._ranks, self._replies = ranks, replies

    def generate(self, request: RolloutRequest) -> dict[int, list[Reply]]:
        answered = [*request.plan.own[self._ranks.rank], *(request.plan.shared if self._ranks.is_first else ())]
        return {prompt: self._answer(request, prompt) for prompt in answered}

    def _answer(self, request: RolloutRequest, prompt: int) -> list[Reply]:
        draw = np.random.default_rng([request.step, request.prompts[prompt].row])
        lengths = draw.integers(1, 9, self._replies)
        return [
            Reply(tokens=draw.integers(10, 90, n), logprobs=np.full(n, np.nan), finished=bool(n < 8)) for n in lengths
        ]


def rollout_tokens(group: dist.ProcessGroup, settings: GRPOSettings, steps: int) -> list[list[list[int]]]:
    """Reply tokens of the first steps of live rollouts, each rolled out twice; the model is left as it is."""
    ranks = ranks_of_default_group(torch.device("cpu"), timeout_s=30)
    job = build_grpo_job(settings, ranks)
    try:
        found = []
        for step in range(steps):
            loaded = finish_step(job, start_step(job, step))
            once, again = (
                [reply.tokens.tolist() for replies in roll_out(job, loaded) for reply in replies] for _ in range(2)
            )
            assert once == again
            found.append(once)
        return found
    finally:
        job.close()


def with_job(group: dist.ProcessGroup, settings: GRPOSettings, use: Callable[[GRPOJob], Any]) -> Any:
    job = build_grpo_job(settings, ranks_of_default_group(torch.device("cpu"), timeout_s=30))
    try:
        return use(job)
    finally:
        job.close()


def train_on_given_replies(group: dist.ProcessGroup, settings: GRPOSettings) -> tuple[Weights, Weights]:
    """Train on ``GivenReplies``; the weights before and after."""

    def weights(job: GRPOJob) -> Weights:
        return {name: p.full_tensor().detach().numpy() for name, p in job.model.named_parameters()}  # type: ignore[attr-defined]

    def train(job: GRPOJob) -> tuple[Weights, Weights]:
        before = {name: values.copy() for name, values in weights(job).items()}
        job.engine = GivenReplies(job.ranks, settings.rollout.replies)
        stop = StopSignal()
        for step in range(settings.steps):
            grpo_step(job, finish_step(job, start_step(job, step)), 0.0, stop)
        stop.restore()
        return before, weights(job)

    return with_job(group, settings, train)
