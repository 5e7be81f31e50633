"""The measured sweep: batches that tell every term apart."""

from collections.abc import Sequence

import pytest

from trimtab.cost.fit import fit
from trimtab.cost.sweep import measure_sweep, sweep_batches
from trimtab.errors import SettingsError


def test_a_sweep_finds_the_cost_of_the_machine_it_ran_on() -> None:
    calls: list[Sequence[int]] = []

    def step_ms(lengths: Sequence[int]) -> float:
        calls.append(lengths)
        cold = 100.0 if len(calls) <= 2 else 0.0
        return cold + 5 + sum(3e-6 * length**2 + 0.01 * length + 0.5 for length in lengths)

    outcome = fit(measure_sweep(sweep_batches(8192), step_ms), skip_first=0)
    assert outcome.language.a == pytest.approx(3, rel=0.02)
    assert outcome.language.b == pytest.approx(10_000, rel=0.02)
    assert outcome.language.c == pytest.approx(5e5, rel=0.02)
    assert len(calls) == 34


def test_batches_keep_to_the_limit() -> None:
    assert all(sum(lengths) <= 1.5 * 4096 for lengths in sweep_batches(4096))


def test_no_room_for_a_sweep() -> None:
    with pytest.raises(SettingsError, match="needs at least 128 tokens, found 100"):
        sweep_batches(100)
