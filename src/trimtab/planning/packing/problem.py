"""What is to be packed: the loads of samples and the caps of a pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MetadataError, SettingsError
from trimtab.schema.plans import digest_of


@dataclass(frozen=True, eq=False, kw_only=True)
class PackProblem:
    """N samples with K loads each.

    Attributes:
        loads: int64 [N, K], for instance patches, tokens and predicted nanoseconds.
        resources: their names [K].
        caps: hard cap on each load of a pack [K]; None: packs are matched by this load, but not limited.

    Raises:
        SettingsError: shapes disagree, a cap is below 1, or none is set.
        MetadataError: a load is negative.
    """

    loads: NDArray[np.int64]
    resources: tuple[str, ...]
    caps: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.loads.ndim != 2 or self.loads.shape[1] != len(self.resources) or len(self.caps) != len(self.resources):
            raise SettingsError(
                f"loads {self.loads.shape}, resources {self.resources} and caps {self.caps} must agree on K columns"
            )
        for name, cap in zip(self.resources, self.caps, strict=True):
            if cap is not None and cap < 1:
                raise SettingsError(f"the cap {name}={cap} must be at least 1, or None for no cap")
        if not self.capped:
            raise SettingsError(f"no cap is set: cap at least one of {', '.join(self.resources)}")
        negative = np.argwhere(self.loads < 0)
        if len(negative):
            row, column = negative[0].tolist()
            raise MetadataError(
                f"sample in row {row}: {self.resources[column]}={self.loads[row, column]} must not be negative"
            )

    @staticmethod
    def from_columns(columns: dict[str, NDArray[Any]], caps: dict[str, int]) -> PackProblem:
        """The problem of named columns [N each], some of them capped; fractions count as the next whole number.

        Raises:
            SettingsError: a cap names no column.
            MetadataError: a load is negative or not finite.
        """
        unknown = sorted(set(caps) - set(columns))
        if unknown:
            raise SettingsError(f"a cap is set on {unknown[0]!r}, which is none of {', '.join(columns)}")
        return PackProblem(
            loads=np.stack([_whole(name, np.asarray(column)) for name, column in columns.items()], axis=1),
            resources=tuple(columns),
            caps=tuple(caps.get(name) for name in columns),
        )

    def __len__(self) -> int:
        return len(self.loads)

    @property
    def capped(self) -> list[int]:
        """Columns with a cap."""
        return [column for column, cap in enumerate(self.caps) if cap is not None]

    @property
    def limits(self) -> NDArray[np.int64]:
        """int64, caps of the capped columns."""
        return np.array([cap for cap in self.caps if cap is not None], dtype=np.int64)

    def oversized(self) -> NDArray[np.int64]:
        """int64, rows of samples that no pack can hold."""
        return np.flatnonzero((self.loads[:, self.capped] > self.limits).any(axis=1))

    def fitting(self) -> NDArray[np.int64]:
        """int64, rows of the other samples."""
        return np.flatnonzero((self.loads[:, self.capped] <= self.limits).all(axis=1))

    def exceeded(self, row: int) -> list[tuple[str, int, int]]:
        """Name, load and cap of what a sample exceeds."""
        pairs = zip(self.resources, self.loads[row].tolist(), self.caps, strict=True)
        return [(name, load, cap) for name, load, cap in pairs if cap is not None and load > cap]

    def why_oversized(self, row: int) -> str:
        """What a sample exceeds, for a message: "tokens=7000 exceeds its cap of 6016"."""
        return " and ".join(f"{name}={load} exceeds its cap of {cap}" for name, load, cap in self.exceeded(row))

    def digest(self) -> str:
        """Sixteen hex digits over loads and caps."""
        return digest_of(self)


def _whole(name: str, column: NDArray[Any]) -> NDArray[np.int64]:
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            row = int(np.argmin(np.isfinite(column)))
            raise MetadataError(f"sample in row {row}: {name}={column[row]} must be a finite number")
        column = np.ceil(column)
    return np.asarray(column, dtype=np.int64)


def smallest_caps(problem: PackProblem, rows: Sequence[int] | NDArray[np.int64]) -> dict[str, int]:
    """The caps that would just hold ``rows``, of the columns that are capped."""
    largest = problem.loads[np.asarray(rows, dtype=np.int64)].max(axis=0, initial=0)
    return {problem.resources[column]: int(largest[column]) for column in problem.capped}
