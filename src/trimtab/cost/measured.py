"""Costs fitted to timed packs: what sequences and frames cost on the device that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from trimtab.cost.polynomial import PolynomialCost
from trimtab.errors import SettingsError
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

_LEAST_GROWTH = 0.02  # below this share of a pack's time, what sizes seem to cost is noise


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """A cost model of two polynomials.

    Attributes:
        language: of a sequence, by its tokens.
        frame: of one temporal patch in the encoder, by its patches.
    """

    language: PolynomialCost
    frame: PolynomialCost

    def __call__(self, batch: BatchMetadata) -> Costs:
        """Costs of a batch."""
        patches = batch.grid_thw[:, 1] * batch.grid_thw[:, 2]
        return Costs(language_ns=self.language(batch.tokens), vision_frame_ns=self.frame(patches))

    def to_json(self) -> dict[str, dict[str, float]]:
        """A JSON-ready dictionary."""
        return {"language": self.language.to_json(), "frame": self.frame.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> MeasuredCost:
        """The inverse of ``to_json``."""
        parts = {name: PolynomialCost.from_json(values[name]) for name in ("language", "frame")}
        return MeasuredCost(**parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFit:
    """What packs were found to take.

    Attributes:
        item: of a sequence, or a frame, by its size.
        overhead_ns: of a pack whatever it holds; the same on all ranks, so plans leave it out.
    """

    item: PolynomialCost
    overhead_ns: float


def fit_packs(packs: Sequence[Sequence[int]], measured_ns: Sequence[float]) -> PackFit:
    """Coefficients from the time of packs of items of known size.

    Non-negative least squares of relative errors on (sum of squares, sum, count, 1).

    Args:
        packs: sizes of the items of each pack (tokens of sequences, or patches of frames).
        measured_ns: time of each pack.

    Raises:
        SettingsError: fewer packs than terms, a time that is not positive, or times that no size explains.
    """
    times = np.asarray(measured_ns, dtype=np.float64)
    if len(packs) < 4 or len(packs) != len(times) or not (np.isfinite(times) & (times > 0)).all():
        raise SettingsError(f"a cost needs at least 4 packs with positive times, found {len(packs)}: {times.tolist()}")
    columns = np.array([_terms(sizes) for sizes in packs])
    scale = np.maximum(columns.max(axis=0), 1.0)
    weights, _ = nnls(columns / scale / times[:, None], np.ones(len(times)))
    a, b, c, overhead = (weights / scale).tolist()
    grows_by = (columns[:, :3] @ (a, b, c)).max() / times.max()
    if grows_by < _LEAST_GROWTH:
        raise SettingsError(
            f"times measured on this machine do not grow with their sizes ({grows_by:.1%} of the longest); is it busy?"
        )
    return PackFit(item=PolynomialCost(a=a, b=b, c=c), overhead_ns=overhead)


def _terms(sizes: Sequence[int]) -> NDArray[np.float64]:
    items = np.asarray(sizes, dtype=np.float64)
    return np.array([(items**2).sum(), items.sum(), len(items), 1.0])
