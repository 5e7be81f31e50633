"""A recommendation that other steps might turn over is said to be one."""

from __future__ import annotations

from dataclasses import replace

from simulate_cases import small

from trimtab.simulate.doubt import doubts
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.sweep import Recommendation


def result(name: str, *milliseconds: float) -> StrategyResult:
    """Of steps with 1,000 tokens on one device."""
    mean = sum(milliseconds) / len(milliseconds)
    return StrategyResult(
        name=name,
        step_ms=mean,
        phases={"update": mean},
        tokens=1000 * len(milliseconds),
        tokens_per_gpu_s=1e6 / mean,
        token_seconds=tuple(each / 1e6 for each in milliseconds),
        attention_ratio=1.0,
        out_of_memory=[],
        planning_ms=0.0,
    )


def uneven(name: str, *steps: tuple[float, int]) -> StrategyResult:
    """Of steps with some milliseconds and tokens on one device."""
    seconds, tokens = sum(each for each, _ in steps) / 1e3, sum(count for _, count in steps)
    return replace(
        result(name, *(each for each, _ in steps)),
        tokens=tokens,
        tokens_per_gpu_s=tokens / seconds,
        token_seconds=tuple(each / 1e3 / count for each, count in steps),
    )


def doubted(chosen: StrategyResult, *others: StrategyResult, changed: StrategyResult | None = None) -> list[str]:
    found = Simulation(scenario=small(), strategies=[chosen, *others])
    settings = {} if changed is None else {"max_degree": "4"}
    best = Recommendation(strategy=chosen.name, settings=settings, result=changed or chosen, fits=True)
    return doubts(found, best)


def test_one_step_tells_nothing_of_the_next() -> None:
    (said,) = doubted(result("all", 10.0), result("as-is", 30.0))
    assert said.startswith("One step does not tell")
    assert "steps=4" in said


def test_a_lead_below_the_spread_of_steps_is_named_with_the_steps_that_would_tell() -> None:
    (said,) = doubted(
        result("all", 10, 30, 10, 30), result("uniform-2", 12, 26, 14, 30), result("as-is", 90, 90, 90, 90)
    )
    assert said == (
        "uniform-2 may be the better choice: all is 2.4% ahead, give or take 16.7% in the 4 steps simulated; "
        "set steps=64 to tell."
    )


def test_a_lead_in_every_step_is_no_doubt_however_much_steps_differ() -> None:
    assert doubted(result("all", 10, 40, 20, 80), result("as-is", 20, 80, 40, 170)) == []


def test_strategies_alike_in_every_step_are_no_doubt() -> None:
    same = (10.0, 40.0, 20.0, 80.0)
    assert doubted(result("all", *same), result("adaptive-only", *same), result("whole-sample", *same)) == []


def test_a_change_that_may_not_pay_is_named() -> None:
    base, changed = result("all", 10, 30, 10, 30), result("all", 9, 31, 9, 28)
    (said,) = doubted(base, changed=changed)
    assert said.startswith("max_degree=4 may not pay: 3.8% less time a token, give or take 6.")
    assert doubted(base, changed=result("all", 8, 24, 8, 24)) == []


def test_a_lead_is_of_the_figure_that_choice_was_made_by() -> None:
    base = uneven("all", (10.0, 1000), (40.0, 4000))
    changed = uneven("all", (12.0, 1000), (36.0, 4000))  # faster over all, by the mean of its steps slower
    (said,) = doubted(base, changed=changed)
    assert said.startswith("max_degree=4 may not pay: 4.0% less time a token")


def test_one_step_in_common_tells_no_more_than_one_step() -> None:
    four, one = result("all", 10, 30, 10, 30), result("as-is", 12)
    (said,) = doubted(four, one)
    assert said.startswith("One step does not tell")
    (said,) = doubted(four, changed=replace(one, name="all"))
    assert said.startswith("One step does not tell")
    assert doubted(result("all", 10, 30), one)[0].startswith("One step does not tell")


def test_only_steps_both_have_are_paired() -> None:
    base = result("all", 10, 30, 10, 30)
    (said,) = doubted(base, replace(result("as-is", 12, 26), tokens_per_gpu_s=base.tokens_per_gpu_s))
    assert said.startswith("as-is may be the better choice")
    assert "in the 2 steps simulated" in said
    (said,) = doubted(base, changed=result("all", 10, 29))
    assert "in the 2 steps simulated" in said


def test_doubts_of_what_the_command_does_not_run_say_so() -> None:
    chosen, rival = result("all", 10, 30, 10, 30), result("uniform-2", 12, 26, 14, 30)
    found = Simulation(scenario=small(), strategies=[chosen, rival])
    best = Recommendation(strategy="all", settings={}, result=chosen, fits=True)
    (said,) = doubts(found, best, runs_otherwise=True)
    assert said.startswith("As simulated, which is not what the command runs, uniform-2 may be the better choice: all")
