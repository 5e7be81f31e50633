"""Replies as they are recorded, and how far two runs' replies agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.training.grpo.experience import Experience


def reply_records(
    step: int, experience: Experience, rewards: NDArray[np.float64], tokenizer: Any
) -> list[dict[str, Any]]:
    """One record a reply: step, sample, number within its group, text, tokens, reward."""
    each = experience.replies_each
    return [
        {
            "step": step,
            "sample_id": experience.prompts[index // each].sample_id,
            "reply": index % each,
            "text": tokenizer.decode(reply.tokens, skip_special_tokens=True),
            "tokens": reply.tokens.tolist(),
            "reward": float(rewards[index]),
        }
        for index, reply in enumerate(experience.replies)
    ]


@dataclass(frozen=True, kw_only=True)
class ReplyDifferences:
    """How far the replies of two runs of the same prompts and weights agree.

    In float64 they are equal. In lower precision a logit that is rounded otherwise may tip a draw.

    Attributes:
        replies: compared.
        differing: those with any other token.
        first_differing_token: place of the first token that differs, of each differing reply.
    """

    replies: int
    differing: int
    first_differing_token: list[int]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


def differences(one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> ReplyDifferences:
    """Compare the records that both runs have of the same step, sample and reply."""
    known = {_key(record): record["tokens"] for record in other}
    pairs = [(record["tokens"], known[_key(record)]) for record in one if _key(record) in known]
    first = [_first_difference(a, b) for a, b in pairs if a != b]
    return ReplyDifferences(replies=len(pairs), differing=len(first), first_differing_token=first)


def _key(record: Mapping[str, Any]) -> tuple[int, str, int]:
    return record["step"], record["sample_id"], record["reply"]


def _first_difference(one: list[int], other: list[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
