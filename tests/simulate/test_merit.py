"""Which result is the better choice, where nothing fits in memory too."""

from __future__ import annotations

from dataclasses import replace

from simulate_cases import small

from trimtab.errors import SettingsError
from trimtab.simulate.device_memory import Overflow
from trimtab.simulate.merit import better
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.sweep import SweepPoint, fastest, recommend


def result(name: str, tokens: float, needed_gb: float = 0.0) -> StrategyResult:
    """One that needs memory of 72 GB."""
    over = Overflow(where="device", index=0, phase="update", needed_gb=needed_gb, limit_gb=72.0, count=1)
    return StrategyResult(
        name=name,
        step_ms=1e6 / tokens,
        phases={},
        tokens=1000,
        tokens_per_gpu_s=tokens,
        token_seconds=(1 / tokens,),
        attention_ratio=1.0,
        out_of_memory=[over] if needed_gb else [],
        planning_ms=0.0,
    )


def fastest_of(*strategies: StrategyResult) -> str:
    return fastest(Simulation(scenario=small(), strategies=list(strategies))).name


def test_of_overflows_about_equal_the_faster_is_nearest() -> None:
    slow, quick, far = result("loongforge", 200, 205), result("all", 450, 206), result("as-is", 900, 220)
    for order in ((slow, quick, far), (far, quick, slow)):
        assert fastest_of(*order) == "all"
    assert better(quick, slow)
    assert not better(far, slow)


def test_of_overflows_about_equal_the_fewer_are_nearest() -> None:
    one, quick = result("all", 450, 157), result("loongforge", 900, 157)
    update = replace(quick.out_of_memory[0], phase="rollout", needed_gb=142.0)
    two = replace(quick, out_of_memory=[*quick.out_of_memory, update])
    for order in ((one, two), (two, one)):
        assert fastest_of(*order) == "all"
    assert better(one, two)
    assert not better(two, one)


def test_what_fits_is_better_than_any_speed() -> None:
    assert fastest_of(result("all", 900, 72.1), result("as-is", 100)) == "as-is"


def test_a_change_that_saves_a_little_memory_where_nothing_fits_is_not_worth_naming() -> None:
    base = result("all", 450, 160)
    tried = {"pack_tokens": [SweepPoint(settings={"pack_tokens": "4096"}, result=result("all", 449, 159))]}
    nearest = recommend(base, tried, lambda _: base)
    assert (nearest.settings, nearest.fits) == ({}, False)


def test_changes_that_contradict_each_other_are_not_taken_together() -> None:
    def contradicts(_: object) -> StrategyResult:
        raise SettingsError("ranks=8 is not a multiple of shards=3; change either")

    base = result("all", 100)
    tried = {
        name: [SweepPoint(settings={name: "2"}, result=result("all", speed))]
        for name, speed in (("shards", 120), ("tensor_parallel", 130))
    }
    assert recommend(base, tried, contradicts).settings == {"tensor_parallel": "2"}
