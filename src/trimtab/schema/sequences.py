"""Which slices of which sequences a rank holds under sequence parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """Tokens ``start:stop`` of one sample.

    Attributes:
        row: of the sample in the step's batch.
        start, stop: within the sample.
    """

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePacking:
    """Which sequences of a node share one exchange (FlexRL, ICLR 2026: dynamic packing).

    Attributes:
        below: shorter sequences are joined in batch order (the paper's h_pack); others travel alone.
        tokens: most of such a group (the paper's H_pack).
    """

    below: int = 4096
    tokens: int = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Sequences that share one exchange: joined, then cut into ``degree`` runs, one for each rank of their node.

    The runs differ by at most one token, so nothing is padded; a cut may fall anywhere, also within an image.

    Attributes:
        degree: p, ranks of the node.
        first_rank: the node is ranks ``first_rank:first_rank + degree``.
        rows: samples, by row of the step's batch, in the order they are joined.
        lengths: tokens of each.
    """

    degree: int
    first_rank: int
    rows: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of all its sequences."""
        return sum(self.lengths)

    @property
    def ranks(self) -> range:
        """The ranks of its node."""
        return range(self.first_rank, self.first_rank + self.degree)

    @property
    def cuts(self) -> tuple[int, ...]:
        """[p + 1], where the joined sequences are cut."""
        return tuple(part * self.tokens // self.degree for part in range(self.degree + 1))

    @property
    def shares(self) -> tuple[int, ...]:
        """[p], tokens each rank of the node holds."""
        return tuple(stop - start for start, stop in pairwise(self.cuts))

    def slices(self, rank: int) -> list[SequenceSlice]:
        """What ``rank``, of the node, holds, in order; samples it holds nothing of are left out."""
        part = rank - self.first_rank
        begin, end = self.cuts[part : part + 2]
        held, offset = [], 0
        for row, length in zip(self.rows, self.lengths, strict=True):
            start, stop = max(begin - offset, 0), min(end - offset, length)
            if start < stop:
                held.append(SequenceSlice(row=row, start=start, stop=stop))
            offset += length
        return held
