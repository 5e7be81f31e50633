"""Partition strategies by name, and the refusal of what a strategy cannot honour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trimtab.errors import SettingsError
from trimtab.planning import whole_sample
from trimtab.planning.peers import as_is
from trimtab.planning.problem import Assignment, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A solver and what it honours.

    Attributes:
        name: how commands and settings call it.
        solve: returns an assignment, or None where it found none that keeps the caps.
        honours: demands of ``PartitionProblem.demands()`` its answers satisfy.
    """

    name: str
    solve: Callable[[PartitionProblem], Assignment | None]
    honours: frozenset[str]


STRATEGIES: dict[str, Strategy] = {
    "as-is": Strategy(name="as-is", solve=as_is.solve, honours=as_is.HONOURS),
    "whole-sample": Strategy(name="whole-sample", solve=whole_sample.solve, honours=whole_sample.HONOURS),
}


def strategy_named(name: str) -> Strategy:
    """Look up a strategy.

    Raises:
        SettingsError: there is none of that name.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"strategy {name!r} is unknown; choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def solve(strategy: Strategy, problem: PartitionProblem) -> Assignment | None:
    """Solve with a strategy that honours all the problem asks for.

    Raises:
        SettingsError: the strategy would ignore a demand.
    """
    ignored = problem.demands() - strategy.honours
    if ignored:
        raise SettingsError(
            f"strategy {strategy.name!r} does not honour {', '.join(sorted(ignored))}; use 'whole-sample' or drop them"
        )
    return strategy.solve(problem)
