"""What a reward function is given. Loads no torch, so that reward processes start at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RewardInput:
    """One reply to be scored.

    Attributes:
        sample_id: of the prompt.
        prompt: text of the last user turn.
        reply: the reply's text, special tokens left out; may be empty.
        answer: the dataset's own answer, where it has one.
        finished: the reply ended by itself; false where the length limit cut it.
        extras: the record's other fields, e.g. ``reward_model`` of verl's datasets.
    """

    sample_id: str
    prompt: str
    reply: str
    answer: str | None
    finished: bool
    extras: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RewardCall:
    """What the reward process is asked: score ``inputs``, or with none of them ``save`` or ``load`` the state."""

    kind: str
    inputs: tuple[RewardInput, ...] = ()
    state: Any = None
