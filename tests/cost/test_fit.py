"""Fitting: planted coefficients come back, and what data cannot tell is refused."""

from dataclasses import replace

import numpy as np
import pytest

from trimtab.cost.fit import TERMS, FittedCost, MeasuredStep, fit
from trimtab.cost.polynomial import PolynomialCost
from trimtab.cost.rank_work import RankWork
from trimtab.errors import MetadataError, SettingsError

PLANTED = PolynomialCost(a=3.0, b=60_000.0, c=1.5e8)
INTERCEPT_MS = 900.0


def measured_steps(count: int, noise: float, *, lengths: str = "varied", seed: int = 0) -> list[MeasuredStep]:
    """Steps of eight ranks, a few samples each, timed by the planted cost."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        samples = int(rng.integers(8, 120))
        tokens = np.full(samples, 4096)
        if lengths == "varied":
            tokens = np.clip(np.exp(rng.normal(rng.uniform(6, 9.5), 0.8, samples)), 30, 64_000).astype(np.int64)
        rank = rng.integers(8, size=samples)
        work = RankWork.of(tokens, rank, 8)
        each = PLANTED.a * work.squared_tokens + PLANTED.b * work.tokens + PLANTED.c * work.samples
        slowest = each.max() / 1e6 + INTERCEPT_MS
        steps.append(MeasuredStep(work=work, slowest_ms=float(slowest * (1 + noise * rng.normal()))))
    return steps


def found(outcome: FittedCost) -> list[float]:
    language = outcome.language
    return [
        language.a / PLANTED.a,
        language.b / PLANTED.b,
        language.c / PLANTED.c,
        outcome.intercept_ms / INTERCEPT_MS,
    ]


def test_planted_coefficients_come_back_exactly_without_noise() -> None:
    assert found(fit(measured_steps(120, 0.0))) == pytest.approx([1, 1, 1, 1], rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_planted_coefficients_come_back_within_5_percent_under_10_percent_noise(seed: int) -> None:
    outcome = fit(measured_steps(1500, 0.10, seed=seed))
    assert found(outcome) == pytest.approx([1, 1, 1, 1], rel=0.05)
    assert 0.05 < outcome.median_error < 0.09
    assert outcome.r_squared > 0.9


def test_cold_steps_do_not_count() -> None:
    steps = measured_steps(120, 0.0)
    cold = [replace(step, slowest_ms=50 * step.slowest_ms) for step in steps[:3]]
    assert found(fit([*cold, *steps[3:]], skip_first=3)) == pytest.approx([1, 1, 1, 1], rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_samples_of_one_length_are_refused(noise: float) -> None:
    with pytest.raises(SettingsError, match=r"cannot identify term .* fit .* alone"):
        fit(measured_steps(300, noise, lengths="fixed"))


def test_one_length_still_fits_fewer_terms() -> None:
    outcome = fit(measured_steps(300, 0.0, lengths="fixed"), terms=("b", "intercept"))
    whole = PLANTED.a * 4096 + PLANTED.b + PLANTED.c / 4096
    assert outcome.language.b == pytest.approx(whole, rel=0.01)
    assert outcome.language.a == outcome.language.c == 0


def test_too_few_noisy_steps_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"noise leaves its share"):
        fit(measured_steps(16, 0.4, seed=1))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"10 observations after 2 cold ones cannot fit 4 terms; record at least"):
        fit(measured_steps(12, 0.0))


def test_times_must_be_positive() -> None:
    steps = measured_steps(40, 0.0)
    with pytest.raises(SettingsError, match="must be positive"):
        fit([*steps, replace(steps[0], slowest_ms=0.0)])


def test_unknown_terms_are_refused() -> None:
    with pytest.raises(SettingsError, match=", ".join(TERMS)):
        fit(measured_steps(40, 0.0), terms=("a", "d"))


def test_a_fit_survives_a_checkpoint() -> None:
    outcome = fit(measured_steps(60, 0.0))
    assert PolynomialCost.from_json(outcome.to_json()) == outcome.language


def test_squares_are_summed_in_64_bits() -> None:
    work = RankWork.of(np.array([131_072, 131_072]), np.array([0, 0]), 2)
    assert work.squared_tokens.tolist() == [2 * 131_072**2, 0]
    assert RankWork.from_json(work.to_json()).squared_tokens.tolist() == work.squared_tokens.tolist()


@pytest.mark.parametrize("tokens", [None, [1.5], [-1], [1, 2, 3]])
def test_bad_rank_work_is_named(tokens: object) -> None:
    with pytest.raises(MetadataError, match="rank work"):
        RankWork.from_json({"squared_tokens": [1, 2], "tokens": tokens, "samples": [1, 1]})
