"""Costs of published form: polynomials in a sequence's length and a visual's grid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialCost:
    """a * l^2 + b * l + c nanoseconds for a sequence of l tokens; over a batch a*sum(l^2) + b*sum(l) + c*n.

    Attributes:
        a: ns per squared token.
        b: ns per token.
        c: ns per sequence.
    """

    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        """Refuse coefficients no measurement gives.

        Raises:
            SettingsError: one is negative or not finite, or all are zero.
        """
        values = (self.a, self.b, self.c)
        if not all(np.isfinite(value) and value >= 0 for value in values) or not any(values):
            raise SettingsError(f"cost coefficients must be finite, not negative and not all zero, found {values}")

    def __call__(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [N], whole nanoseconds of sequences of ``tokens`` (int64 [N])."""
        length = tokens.astype(np.float64)
        return np.rint((self.a * length + self.b) * length + self.c * (tokens > 0)).astype(np.int64)

    def to_json(self) -> dict[str, float]:
        """A JSON-ready dictionary."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> PolynomialCost:
        """The inverse of ``to_json``; other keys are ignored.

        Raises:
            SettingsError: a coefficient is missing or no number.
        """
        if not isinstance(values, Mapping):
            raise SettingsError(f"cost coefficients must be an object with a, b and c, found {type(values).__name__}")
        found = {name: values.get(name) for name in ("a", "b", "c")}
        for name, value in found.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise SettingsError(f"cost coefficient {name} must be a number, found {json.dumps(value)}")
        return PolynomialCost(**{name: float(value) for name, value in found.items() if value is not None})


QUADRATIC = PolynomialCost(a=1.0, b=0.0, c=0.0)
"""l^2, the attention-only cost of much of the literature."""


def squared_grid(batch: BatchMetadata) -> NDArray[np.int64]:
    """int64 [V], (T*H*W)^2 spread over T frames: LoongForge's encoder cost, which overstates video."""
    per_frame = batch.grid_thw[:, 1] * batch.grid_thw[:, 2]
    return batch.grid_thw[:, 0] * per_frame**2


def polynomial_costs(batch: BatchMetadata, language: PolynomialCost, vision_frame_ns: NDArray[np.int64]) -> Costs:
    """Language costs by a polynomial beside any encoder costs (int64 [V])."""
    return Costs(language_ns=language(batch.tokens), vision_frame_ns=vision_frame_ns)
