"""Even draws: a shuffled deck deals each of its cards once before any of them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

Card = TypeVar("Card")


class Deck(Generic[Card]):
    """Deals cards in random order, and shuffles anew when all are dealt."""

    def __init__(self, cards: Sequence[Card], rng: np.random.Generator) -> None:
        """Make a deck of at least one card.

        Raises:
            ValueError: there is no card.
        """
        if not cards:
            raise ValueError("a deck needs at least one card")
        self._cards = tuple(cards)
        self._rng = rng
        self._order: list[int] = []

    def deal(self) -> Card:
        """The next card."""
        if not self._order:
            self._order = self._rng.permutation(len(self._cards)).tolist()
        return self._cards[self._order.pop()]
