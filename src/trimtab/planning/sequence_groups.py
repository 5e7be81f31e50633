"""Nested groups of ranks for sequence parallelism: which ranks may share a sequence.

For each degree p of a divisor chain (1, 2, 4, 8 or 1, 3, 6), ranks are cut into nodes of p consecutive ranks, so two
nodes are disjoint or one holds the other. Then "highest degree first" is one order for all ranks, and sequences of
different degrees can share a forward without a deadlock (FlexRL, ICLR 2026: FlexUlysses).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from trimtab.errors import SettingsError
from trimtab.schema.setting_checks import check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFamily:
    """The nested groups of R ranks.

    Where a degree p does not divide R, the last R mod p ranks belong to no node of p ranks, only to smaller ones.

    Attributes:
        ranks: R.
        degrees: ascending from 1, each dividing the next, none above R.
    """

    ranks: int
    degrees: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the chain.

        Raises:
            SettingsError: there are no ranks, or the degrees are no divisor chain from 1 to at most R.
        """
        check_least("ranks", self.ranks, 1)
        chain = self.degrees
        divides = all(low < high and high % low == 0 for low, high in pairwise(chain))
        if not chain or chain[0] != 1 or not divides:
            raise SettingsError(f"degrees {list(chain)} must start at 1, each dividing the next")
        if chain[-1] > self.ranks:
            raise SettingsError(f"degree {chain[-1]} needs as many ranks, there are {self.ranks}")

    def nodes(self, degree: int) -> tuple[tuple[int, ...], ...]:
        """The ranks of every node of ``degree`` ranks, in order.

        Raises:
            SettingsError: the family has no such degree.
        """
        self._check(degree)
        return nodes_of(self.ranks, degree)

    def node_of(self, rank: int, degree: int) -> tuple[int, ...] | None:
        """The node of ``degree`` ranks that holds ``rank``; None for a rank left over at that degree.

        Raises:
            SettingsError: the family has no such degree or rank.
        """
        self._check(degree)
        if not 0 <= rank < self.ranks:
            raise SettingsError(f"rank {rank} is not below {self.ranks}")
        first = rank - rank % degree
        return tuple(range(first, first + degree)) if first + degree <= self.ranks else None

    def _check(self, degree: int) -> None:
        if degree not in self.degrees:
            raise SettingsError(f"degree {degree} is not of the group family's {list(self.degrees)}")


def nodes_of(ranks: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Each node of ``degree`` consecutive ranks among ``ranks``, in order."""
    return tuple(tuple(range(first, first + degree)) for first in range(0, ranks - degree + 1, degree))


def usable_degrees(ranks: int, legal_degrees: Iterable[int], max_degree: int) -> tuple[int, ...]:
    """The legal degrees up to ``max_degree`` that so many ranks can form, ascending from 1."""
    return tuple(sorted({1, *(degree for degree in legal_degrees if 1 <= degree <= min(max_degree, ranks))}))


def group_family(
    ranks: int, legal_degrees: Iterable[int], max_degree: int, *, ranks_per_node: int = 8, needed: int = 1
) -> GroupFamily:
    """The family with most of a model's legal degrees, fast links first.

    Of the divisor chains the one with most degrees whose nodes fill hosts, then with most that leave no rank over, then
    the longest, then the one that reaches highest, then the one with the smallest steps first. One that does not reach
    the needed degree is taken only where none does, and then the one that comes nearest.

    Args:
        ranks: R.
        legal_degrees: what the model's heads allow (``LanguageArchitecture.legal_degrees``).
        max_degree: largest degree wanted.
        ranks_per_node: consecutive ranks that share fast links.
        needed: degree the largest sample has to have.

    Raises:
        SettingsError: ``max_degree`` or ``ranks_per_node`` is below 1.
    """
    for name, value in (("max_degree", max_degree), ("ranks_per_node", ranks_per_node)):
        check_least(name, value, 1)
    usable = usable_degrees(ranks, legal_degrees, max_degree)
    host = min(ranks, ranks_per_node)

    def merit(chain: tuple[int, ...], top: int = 0) -> tuple[int, int, int, int, tuple[int, ...]]:
        filling = sum(host % degree == 0 for degree in chain)
        even = sum(ranks % degree == 0 for degree in chain)
        return filling, even, len(chain), top, tuple(-degree for degree in chain)

    best_to: dict[int, tuple[int, ...]] = {}
    for degree in usable:
        before = [best_to[lower] for lower in usable if lower < degree and degree % lower == 0]
        best_to[degree] = (*max(before, key=merit, default=()), degree)
    chosen = max(best_to.values(), key=lambda chain: (min(chain[-1], needed), merit(chain, chain[-1])))
    return GroupFamily(ranks=ranks, degrees=chosen)
