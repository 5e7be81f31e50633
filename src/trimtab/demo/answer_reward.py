"""The demo's reward: 1 for exactly the right word, else 0."""

from __future__ import annotations

from trimtab.training.grpo.reward_call import RewardInput


def exact(item: RewardInput) -> float:
    """Whether the reply is the dataset's answer and ended there."""
    return float(item.finished and item.reply.strip() == item.answer)
