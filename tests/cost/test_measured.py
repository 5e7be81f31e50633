"""Costs fitted to timed packs."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.cost.measured import MeasuredCost, fit_packs
from trimtab.cost.polynomial import PolynomialCost
from trimtab.errors import SettingsError

PACKS = [[50], [50] * 4, [200], [200] * 3, [800], [400] * 2, [1600]]


def times(a: float, b: float, c: float, overhead: float, noise: float = 0.0) -> list[float]:
    draw = np.random.default_rng(0)
    exact = [sum(a * length**2 + b * length + c for length in pack) + overhead for pack in PACKS]
    return [time * (1 + noise * draw.uniform(-1, 1)) for time in exact]


def test_planted_coefficients_come_back_and_the_overhead_apart() -> None:
    found = fit_packs(PACKS, times(2.0, 3000.0, 1e5, 5e6))
    assert (found.item.a, found.item.b, found.item.c) == pytest.approx((2.0, 3000.0, 1e5), rel=1e-6)
    assert found.overhead_ns == pytest.approx(5e6, rel=1e-6)


def test_noise_moves_the_cost_of_a_typical_item_little() -> None:
    found = fit_packs(PACKS, times(2.0, 3000.0, 0.0, 1e6, noise=0.05)).item
    exact = PolynomialCost(a=2.0, b=3000.0, c=0.0)
    sizes = np.array([200, 800, 1600])
    np.testing.assert_allclose(found(sizes), exact(sizes), rtol=0.15)


@pytest.mark.parametrize(
    ("packs", "measured"), [(PACKS[:3], [1.0] * 3), (PACKS, [1.0] * 6 + [0.0]), (PACKS, [5.0] * 7)]
)
def test_what_tells_nothing_is_refused(packs: list[list[int]], measured: list[float]) -> None:
    with pytest.raises(SettingsError):
        fit_packs(packs, measured)


def test_the_model_survives_a_checkpoint() -> None:
    model = MeasuredCost(language=PolynomialCost(a=1.5, b=2.0, c=0.0), frame=PolynomialCost(a=0.1, b=7.0, c=9.0))
    assert MeasuredCost.from_json(model.to_json()) == model
