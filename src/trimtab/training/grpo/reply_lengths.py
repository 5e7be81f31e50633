"""How long a reply will be, learned from the replies so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_REMEMBERED = 10_000
_SHARE = 0.1
"""Weight of a new step in the running mean."""


class ReplyLengths:
    """Predicts a prompt's mean reply length: the one it had when last seen, else the running mean of all."""

    def __init__(self, *, first_guess: int) -> None:
        """Predict ``first_guess`` tokens until something was learned."""
        self._mean: float | None = None
        self._first_guess = first_guess
        self._of_prompt: OrderedDict[str, float] = OrderedDict()

    def expected(self, sample_ids: Sequence[str]) -> NDArray[np.int64]:
        """int64 [P], tokens of a reply to each prompt, at least 1."""
        usual = self._first_guess if self._mean is None else self._mean
        lengths = [self._of_prompt.get(name, usual) for name in sample_ids]
        return np.maximum(1, np.rint(lengths)).astype(np.int64)

    def learn(self, sample_ids: Sequence[str], tokens: NDArray[np.int64]) -> None:
        """Take in a step: int64 [P, n] reply tokens of P prompts; every rank must be told the same."""
        if not len(sample_ids):
            return
        mean = float(tokens.mean())
        self._mean = mean if self._mean is None else (1 - _SHARE) * self._mean + _SHARE * mean
        for name, length in zip(sample_ids, tokens.mean(axis=1).tolist(), strict=True):
            self._of_prompt[name] = length
            self._of_prompt.move_to_end(name)
        while len(self._of_prompt) > _REMEMBERED:
            self._of_prompt.popitem(last=False)

    def state_dict(self) -> dict[str, Any]:
        """The running mean and the prompts remembered, at most ten thousand."""
        return {"mean": self._mean, "of_prompt": dict(self._of_prompt)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._mean = state["mean"]
        self._of_prompt = OrderedDict(state["of_prompt"])
