"""What each setting is worth: one varied at a time, then the best of each choice together; and a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trimtab.errors import InfeasibleError, MetadataError, SettingsError, TrimtabError
from trimtab.simulate.choices import CHOICES, check_sweepable
from trimtab.simulate.how_to_run import HowToRun
from trimtab.simulate.merit import OURS, alike, best_of, better, nearest
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.swept_values import listed_values
from trimtab.simulate.switches import as_commands_say

ALIASES = {"H_pack": "pack_tokens", "h_pack": "pack_below", "p_max": "max_degree"}
_MOST_POINTS = 64
CANNOT_BE = (InfeasibleError, MetadataError, SettingsError)
"""Errors of settings that go with nothing else."""

Overrides = Mapping[str, str]
Run = Callable[[Overrides], StrategyResult]


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A simulated change of settings.

    Attributes:
        settings: what was changed, as written.
        result: of the strategy swept.
    """

    settings: dict[str, str]
    result: StrategyResult

    def to_json(self, standing: str) -> dict[str, Any]:
        """A JSON-ready dictionary; ``standing``: "as given", "recommended" or ""."""
        return {"settings": self.settings, "standing": standing, **self.result.to_json()}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What became of the values swept.

    Attributes:
        points: simulated values of each setting.
        refused: why the other values cannot be, by setting and value.
    """

    points: dict[str, list[SweepPoint]]
    refused: dict[tuple[str, str], str]

    def to_json(self, standings: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
        """JSON-ready dictionaries in the order of ``standings``, which has every value swept."""
        told = {pair: point.to_json(standings[pair]) for name in self.points for pair, point in self.of(name).items()}
        told |= {
            (name, value): {"settings": {name: value}, "standing": "", "error": reason}
            for (name, value), reason in self.refused.items()
        }
        return [told[pair] for pair in standings]

    def of(self, name: str) -> dict[tuple[str, str], SweepPoint]:
        """What was simulated of a setting, by setting and value."""
        return {(name, point.settings[name]): point for point in self.points[name]}


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to run; where nothing fits in memory, what comes nearest to fitting, which is not to be run.

    Attributes:
        strategy: name of it.
        settings: changes worth at least 1 % of the step each, as written; none where the given ones are best.
        result: predicted with them.
        fits: nothing overflows.
        remedy: what overflows and what would make it fit; "" where it does.
    """

    strategy: str
    settings: dict[str, str]
    result: StrategyResult
    fits: bool
    remedy: str = ""

    def to_json(self, run: HowToRun, doubts: Sequence[str]) -> dict[str, Any]:
        """A JSON-ready dictionary.

        Args:
            run: how the trainer is told so; left out where it does not fit.
            doubts: of other steps; left out where it does not fit.
        """
        told = run if self.fits else HowToRun(command="", remark="")
        own = {"strategy": self.strategy, "settings": self.settings, "fits": self.fits, "remedy": self.remedy}
        own |= {"run": told.command, "run_remark": told.remark, "run_needs": told.needs}
        own["doubts"] = list(doubts) if self.fits else []
        if told.step_ms is not None:
            own["run_step_ms"] = told.step_ms
        return {**own, **self.result.to_json()}


def parse_sweep(words: Sequence[str]) -> dict[str, list[str]]:
    """Values of each setting to try from words like "max_degree=1,2,4,8".

    Raises:
        SettingsError: a word is no such list, a setting is named twice or cannot be swept, or there are too many.
    """
    swept: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise SettingsError(f"--sweep {word}: write setting=value,value,...; such as max_degree=1,2,4,8")
        name = ALIASES.get(name, name)
        check_sweepable([name])
        if name in swept:
            raise SettingsError(f"--sweep {word}: {name} is swept twice; list its values once")
        swept[name] = list(dict.fromkeys(as_commands_say(name, value) for value in listed_values(name, values)))
    points = sum(len(values) for values in swept.values())
    if points > _MOST_POINTS:
        raise SettingsError(f"--sweep has {points} values, more than {_MOST_POINTS}; leave some out")
    return swept


def sweep(swept: Mapping[str, Sequence[str]], run: Run) -> Sweep:
    """Simulate every value of every setting, the others as they were given.

    Args:
        swept: values of each setting.
        run: simulates the scenario with some settings changed.

    Raises:
        TrimtabError: no value can be, and why the first cannot.
    """
    points: dict[str, list[SweepPoint]] = {name: [] for name in swept}
    refused: dict[tuple[str, str], str] = {}
    first: TrimtabError | None = None
    for name, values in swept.items():
        for value in values:
            try:
                points[name].append(SweepPoint(settings={name: value}, result=run({name: value})))
            except CANNOT_BE as error:
                first = first or error
                refused[name, value] = str(error).partition("; ")[0]  # what follows is a remedy
    if first is not None and not any(points.values()):
        raise first
    return Sweep(points=points, refused=refused)


def fastest(simulation: Simulation) -> StrategyResult:
    """The strategy to sweep: the fastest of those that fit, or the nearest to fitting where none does.

    Of strategies as fast as each other trimtab's own comes first.
    """
    best = best_of(simulation.strategies)
    ours = [row for name in OURS for row in nearest(simulation.strategies) if row.name == name]
    return next((row for row in ours if not better(best, row)), best)


def recommend(base: StrategyResult, points: Mapping[str, Sequence[SweepPoint]], run: Run) -> Recommendation:
    """The best of: nothing changed, every single change, and the best values of all settings together.

    Settings that are no choice, such as ranks, model or data, stay as they were given.

    Args:
        base: with nothing changed.
        points: of ``sweep``, for the same strategy.
        run: as for ``sweep``.
    """
    points = {name: tried for name, tried in points.items() if tried and name in CHOICES}
    candidates = [SweepPoint(settings={}, result=base)]
    together: dict[str, str] = {}
    for name, tried in points.items():
        best = _best(tried)
        candidates.append(best)
        if better(best.result, base):
            together[name] = best.settings[name]
    if len(together) > 1:
        with suppress(*CANNOT_BE):  # each by itself can be, both may contradict each other
            candidates.append(SweepPoint(settings=together, result=run(together)))
    best = _best(candidates)
    as_near = base in nearest([point.result for point in candidates])
    if best.settings and as_near and not better(best.result, base):
        best = candidates[0]
    return Recommendation(
        strategy=base.name, settings=best.settings, result=best.result, fits=not best.result.out_of_memory
    )


def _best(points: Sequence[SweepPoint]) -> SweepPoint:
    best = best_of([point.result for point in points])
    return next(point for point in points if point.result is best)


def without_effect(base: StrategyResult, swept: Sweep) -> list[str]:
    """Settings all of whose values can be and none makes a difference.

    Args:
        base: with nothing changed.
        swept: the same strategy with settings changed.
    """
    partly = {name for name, _ in swept.refused}
    whole = {name: tried for name, tried in swept.points.items() if name not in partly}
    return [name for name, tried in whole.items() if all(alike(point.result, base) for point in tried)]
