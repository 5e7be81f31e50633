from collections import Counter

import numpy as np
import pytest

from trimtab.demo.decks import Deck


def test_every_card_is_dealt_once_before_any_again() -> None:
    deck = Deck("abcde", np.random.default_rng(0))
    rounds = [[deck.deal() for _ in range(5)] for _ in range(4)]
    assert all(sorted(dealt) == list("abcde") for dealt in rounds)
    assert len({tuple(dealt) for dealt in rounds}) > 1


def test_counts_never_differ_by_more_than_one() -> None:
    deck = Deck(range(4), np.random.default_rng(1))
    counts = Counter(deck.deal() for _ in range(4 * 3 + 2))
    assert max(counts.values()) - min(counts.values()) == 1


def test_an_empty_deck_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one card"):
        Deck([], np.random.default_rng(0))
