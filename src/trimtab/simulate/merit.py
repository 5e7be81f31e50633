"""Which of two simulated strategies, or settings, is the better choice."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.simulate.run import StrategyResult

OURS = ("all", "whole-sample", "isf+stages+recompute")
"""Of strategies as fast as each other the first of these is chosen."""
WORTH_A_CHANGE = 0.01
"""Least share of the time for a token that a change must save."""
_AS_NEAR = 1.05
"""Overflows apart by no more than this are equal: neither choice is one that fits."""
_SEEN = 5e-4
"""Share of a figure below which it is printed as no change."""


def overflow_share(result: StrategyResult) -> float:
    """How far it overflows memory, as needed over held; 0: it fits."""
    return max((each.needed_gb / each.limit_gb for each in result.out_of_memory), default=0.0)


def nearest(results: Sequence[StrategyResult]) -> list[StrategyResult]:
    """Those that fit; where none does, those about as near to fitting as the nearest, with the fewest overflows."""
    least = min(map(overflow_share, results))
    near = [result for result in results if overflow_share(result) <= _AS_NEAR * least]
    fewest = min(len(result.out_of_memory) for result in near)
    return [result for result in near if len(result.out_of_memory) == fewest]


def best_of(results: Sequence[StrategyResult]) -> StrategyResult:
    """Of the nearest the one with least time for a token, as steps may differ in what they hold."""
    return max(nearest(results), key=lambda result: result.tokens_per_gpu_s)


def better(result: StrategyResult, base: StrategyResult) -> bool:
    """It fits, or comes nearer to fitting, where the other does not; or is faster by enough."""
    over, base_over = overflow_share(result), overflow_share(base)
    if max(over, base_over) > _AS_NEAR * min(over, base_over):
        return over < base_over
    if len(result.out_of_memory) != len(base.out_of_memory):
        return len(result.out_of_memory) < len(base.out_of_memory)
    return result.tokens_per_gpu_s > base.tokens_per_gpu_s * (1 + WORTH_A_CHANGE)


def alike(result: StrategyResult, base: StrategyResult) -> bool:
    """Neither speed, nor time of a step, nor what overflows is another."""
    figures = ((result.tokens_per_gpu_s, base.tokens_per_gpu_s), (result.step_ms, base.step_ms))
    same = all(abs(one - other) <= _SEEN * other for one, other in figures)
    return same and overflow_share(result) == overflow_share(base)
