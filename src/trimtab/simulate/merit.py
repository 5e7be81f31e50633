"""Which of two simulated strategies, or settings, is the better choice."""

from __future__ import annotations

from trimtab.simulate.run import StrategyResult

OURS = ("all", "whole-sample", "isf+stages+recompute")
"""Of strategies as fast as each other the first of these is chosen."""
WORTH_A_CHANGE = 0.01
"""Least share of the time for a token that a change must save."""
_SEEN = 5e-4
"""Share of a figure below which it is printed as no change."""


def overflow_share(result: StrategyResult) -> float:
    """How far it overflows memory, as needed over held; 0: it fits."""
    return max((each.needed_gb / each.limit_gb for each in result.out_of_memory), default=0.0)


def merit(result: StrategyResult) -> tuple[float, float]:
    """Least is best: how far it overflows, then time for a token, as steps may differ in what they hold."""
    return overflow_share(result), -result.tokens_per_gpu_s


def better(result: StrategyResult, base: StrategyResult) -> bool:
    """It fits, or comes nearer to fitting, where the other does not; or is faster by enough."""
    (over, speed), (base_over, base_speed) = merit(result), merit(base)
    if over != base_over:
        return over < base_over
    return -speed > -base_speed * (1 + WORTH_A_CHANGE)


def alike(result: StrategyResult, base: StrategyResult) -> bool:
    """Neither speed, nor time of a step, nor what overflows is another."""
    figures = ((result.tokens_per_gpu_s, base.tokens_per_gpu_s), (result.step_ms, base.step_ms))
    same = all(abs(one - other) <= _SEEN * other for one, other in figures)
    return same and overflow_share(result) == overflow_share(base)
