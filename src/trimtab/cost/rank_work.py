"""What each rank computed in a step, in the terms the cost polynomial is fitted in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MetadataError


@dataclass(frozen=True, eq=False, kw_only=True)
class RankWork:
    """Sums over a rank's sequences in one step, all its micro-batches together (R ranks).

    Attributes:
        squared_tokens: int64 [R], sum of l^2; 64 bits, since one sequence of 46,341 tokens passes 32.
        tokens: int64 [R], sum of l.
        samples: int64 [R], number of sequences.
    """

    squared_tokens: NDArray[np.int64]
    tokens: NDArray[np.int64]
    samples: NDArray[np.int64]

    @staticmethod
    def of(tokens: NDArray[np.int64], rank: NDArray[np.int64], ranks: int) -> RankWork:
        """Add up sequences of ``tokens`` (int64 [N]) on the ranks they ran on (int64 [N])."""
        sums = np.zeros((3, ranks), dtype=np.int64)
        for row, values in enumerate((tokens * tokens, tokens, np.ones_like(tokens))):
            np.add.at(sums[row], rank, values)
        return RankWork(squared_tokens=sums[0], tokens=sums[1], samples=sums[2])

    def to_json(self) -> dict[str, list[int]]:
        """A JSON-ready dictionary; its keys are the attributes."""
        return {
            "squared_tokens": self.squared_tokens.tolist(),
            "tokens": self.tokens.tolist(),
            "samples": self.samples.tolist(),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RankWork:
        """The inverse of ``to_json``.

        Raises:
            MetadataError: a column is missing, ragged or not of whole numbers.
        """
        columns = [_whole(values, name) for name in ("squared_tokens", "tokens", "samples")]
        if len({len(column) for column in columns}) != 1:
            raise MetadataError(
                f"rank work: columns have {[len(column) for column in columns]} ranks, expected as many each"
            )
        return RankWork(squared_tokens=columns[0], tokens=columns[1], samples=columns[2])


def _whole(values: Mapping[str, Any], name: str) -> NDArray[np.int64]:
    column = values.get(name)
    if not isinstance(column, Sequence) or not all(isinstance(item, int) and item >= 0 for item in column):
        raise MetadataError(f"rank work: {name} must list a whole number for each rank, found {column!r}")
    if max(column, default=0) >= 2**63:
        raise MetadataError(f"rank work: {name} holds {max(column)}, more than 64 bits do; correct it")
    return np.array(column, dtype=np.int64)
