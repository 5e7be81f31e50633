"""What each setting is worth: one varied at a time, then the best of each choice together; and a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import SettingsError
from trimtab.simulate.choices import CHOICES, check_sweepable
from trimtab.simulate.how_to_run import HowToRun
from trimtab.simulate.merit import OURS, alike, better, merit
from trimtab.simulate.run import Simulation, StrategyResult

ALIASES = {"H_pack": "pack_tokens", "h_pack": "pack_below", "p_max": "max_degree"}
_MOST_POINTS = 64

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
class Recommendation:
    """What to run.

    Attributes:
        strategy: name of it.
        settings: changes worth at least 1 % of the step each, as written; none where the given ones are best.
        result: predicted with them.
        fits: nothing overflows.
    """

    strategy: str
    settings: dict[str, str]
    result: StrategyResult
    fits: bool

    def to_json(self, run: HowToRun, doubts: Sequence[str]) -> dict[str, Any]:
        """A JSON-ready dictionary; ``run`` is how the trainer is told so, ``doubts`` are of other steps."""
        own = {"strategy": self.strategy, "settings": self.settings, "fits": self.fits}
        own |= {"run": run.command, "run_remark": run.remark, "run_needs": run.needs, "doubts": list(doubts)}
        return {**own, **self.result.to_json()}


def parse_sweep(words: Sequence[str]) -> dict[str, list[str]]:
    """Values of each setting to try from words like "max_degree=1,2,4,8".

    Raises:
        SettingsError: a word is no such list, a setting is named twice or cannot be swept, or there are too many.
    """
    swept: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = ALIASES.get(name, name)
        listed = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not name or not equals or "" in listed:
            raise SettingsError(f"--sweep {word}: write setting=value,value,...; such as max_degree=1,2,4,8")
        if name in swept:
            raise SettingsError(f"--sweep {word}: {name} is swept twice; list its values once")
        swept[name] = listed
    check_sweepable(swept)
    points = sum(len(values) for values in swept.values())
    if points > _MOST_POINTS:
        raise SettingsError(f"--sweep has {points} values, more than {_MOST_POINTS}; leave some out")
    return swept


def sweep(swept: Mapping[str, Sequence[str]], run: Run) -> dict[str, list[SweepPoint]]:
    """Simulate every value of every setting, the others as they were given.

    Args:
        swept: values of each setting.
        run: simulates the scenario with some settings changed.
    """
    return {
        name: [SweepPoint(settings={name: value}, result=run({name: value})) for value in values]
        for name, values in swept.items()
    }


def fastest(simulation: Simulation) -> StrategyResult:
    """The strategy to sweep: the fastest of those that fit, or the nearest to fitting where none does.

    Of strategies as fast as each other trimtab's own comes first.
    """
    best = min(simulation.strategies, key=merit)
    ours = [row for name in OURS for row in simulation.strategies if row.name == name]
    return next((row for row in ours if not better(best, row)), best)


def recommend(base: StrategyResult, points: Mapping[str, Sequence[SweepPoint]], run: Run) -> Recommendation:
    """The best of: nothing changed, every single change, and the best values of all settings together.

    Settings that are no choice, such as ranks, model or data, stay as they were given.

    Args:
        base: with nothing changed.
        points: of ``sweep``, for the same strategy.
        run: as for ``sweep``.
    """
    candidates = [SweepPoint(settings={}, result=base)]
    together: dict[str, str] = {}
    for name, tried in points.items():
        if name not in CHOICES:
            continue
        best = min(tried, key=lambda point: merit(point.result))
        candidates.append(best)
        if better(best.result, base):
            together[name] = best.settings[name]
    if len(together) > 1:
        candidates.append(SweepPoint(settings=together, result=run(together)))
    best = min(candidates, key=lambda point: merit(point.result))
    if best.settings and not better(best.result, base):
        best = candidates[0]
    return Recommendation(
        strategy=base.name, settings=best.settings, result=best.result, fits=not best.result.out_of_memory
    )


def without_effect(base: StrategyResult, points: Mapping[str, Sequence[SweepPoint]]) -> list[str]:
    """Settings none of whose values makes a difference.

    Args:
        base: with nothing changed.
        points: of ``sweep``, for the same strategy.
    """
    return [name for name, tried in points.items() if all(alike(point.result, base) for point in tried)]
