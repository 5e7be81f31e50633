"""The GRPO demo's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trimtab.demo.settings import DatasetSettings


@dataclass(frozen=True, kw_only=True)
class GRPODemoSettings:
    """A short supervised start, reinforcement on short prompts, and a timing stretch on heavy-tailed ones.

    The start is cut short on purpose: sampled answers are then right about every third time, which leaves something to
    learn from rewards alone.

    Attributes:
        seed: of data, weights and sampling.
        train, held_out: samples that are learned from, and scored at the end.
        dataset: small pictures and one kind of question.
        start_steps, start_samples, start_learning_rate: of the supervised start.
        steps, prompts, replies, max_reply_tokens, learning_rate: of the reinforcement.
        timing_steps, timing_prompts, timing_replies, timing_samples: of the timing stretch, on the demo's own
            heavy-tailed data; its weights are held still, so that both modes see the same replies.
    """

    seed: int = 0
    train: int = 480
    held_out: int = 96
    dataset: DatasetSettings = field(
        default_factory=lambda: DatasetSettings(
            pictures_per_sample=0.5,
            clips_per_sample=0.0,
            picture_side=84.0,
            picture_side_range=(56, 168),
            picture_spread=0.3,
            shares={"colour": 1.0},
        )
    )
    start_steps: int = 14
    start_samples: int = 12
    start_learning_rate: float = 6e-3
    steps: int = 32
    prompts: int = 8
    replies: int = 8
    max_reply_tokens: int = 4
    learning_rate: float = 1.2e-3
    timing_steps: int = 10
    timing_prompts: int = 8
    timing_replies: int = 4
    timing_samples: int = 240

    def at_most(self, steps: int) -> GRPODemoSettings:
        """The same with no stretch longer than ``steps``."""
        return replace(
            self,
            start_steps=min(self.start_steps, steps),
            steps=min(self.steps, steps),
            timing_steps=min(self.timing_steps, steps),
        )
