"""Whether the steps simulated suffice to tell the choice recommended from the next best."""

from __future__ import annotations

import math

import numpy as np

from trimtab.simulate.merit import OURS, WORTH_A_CHANGE, overflow_share
from trimtab.simulate.run import Simulation, StrategyResult
from trimtab.simulate.sweep import Recommendation

_ERRORS = 2  # standard errors by which a mean may be off
_MOST_STEPS = 64


def doubts(simulation: Simulation, best: Recommendation, *, runs_otherwise: bool = False) -> list[str]:
    """What other steps might have recommended, a sentence each; none where the recommendation would stay.

    Leads are of tokens for every device and second, by which the choice is made. All strategies take the same samples
    in a step (pipelines: as many packs), so times for a token are compared step by step, as far as both have steps;
    their mean difference may be off by two of its standard errors.

    Args:
        simulation: every strategy, with the settings as given.
        best: what is recommended of it.
        runs_otherwise: the command runs something else than was simulated.
    """
    base = next(row for row in simulation.strategies if row.name == best.strategy)
    rivals = [row for row in simulation.strategies if row is not base and overflow_share(row) == overflow_share(base)]
    if (rivals or best.settings) and min(map(_steps, [base, *rivals, best.result])) == 1:
        return ["One step does not tell how much steps differ, and others may recommend otherwise: set steps=4."]
    rivals.sort(key=lambda row: -row.tokens_per_gpu_s)
    doubted = [said for rival in rivals if (said := _of_rival(base, rival)) is not None][:1]
    if best.settings and overflow_share(best.result) == overflow_share(base):
        doubted += _of_change(base, best)
    return (
        [f"As simulated, which is not what the command runs, {said}" for said in doubted] if runs_otherwise else doubted
    )


def _of_rival(base: StrategyResult, rival: StrategyResult) -> str | None:
    """At the lead tolerated the rival would have been chosen: of strategies as fast trimtab's own comes first."""
    place = [OURS.index(name) if name in OURS else len(OURS) for name in (base.name, rival.name)]
    tolerated = WORTH_A_CHANGE * float(np.sign(place[0] - place[1]))
    lead, error = _lead(base, rival)
    if lead - tolerated >= error:
        return None
    steps = min(_steps(base), _steps(rival))
    where = f"{base.name} is {abs(lead):.1%} {'ahead' if lead >= 0 else 'behind'}"
    return f"{rival.name} may be the better choice: {where}, {_remedy(steps, lead - tolerated, error)}."


def _of_change(base: StrategyResult, best: Recommendation) -> list[str]:
    lead, error = _lead(best.result, base)
    if lead - WORTH_A_CHANGE >= error:
        return []
    steps = min(_steps(base), _steps(best.result))
    changes = " ".join(f"{name}={value}" for name, value in best.settings.items())
    return [f"{changes} may not pay: {lead:.1%} less time a token, {_remedy(steps, lead - WORTH_A_CHANGE, error)}."]


def _lead(first: StrategyResult, second: StrategyResult) -> tuple[float, float]:
    """By what share the first takes less time for a token than the second, and how far that may be off."""
    steps = min(_steps(first), _steps(second))
    of_first, of_second = np.array(first.token_seconds[:steps]), np.array(second.token_seconds[:steps])
    saved = (of_second - of_first) / of_second.mean()
    lead = 1 - second.tokens_per_gpu_s / first.tokens_per_gpu_s if first.tokens_per_gpu_s else 0.0
    return lead, _ERRORS * float(saved.std(ddof=1)) / math.sqrt(steps)


def _steps(row: StrategyResult) -> int:
    return len(row.token_seconds)


def _remedy(steps: int, margin: float, error: float) -> str:
    """How far off, and the steps that would tell: the error shrinks with their square root."""
    needed = steps * (error / max(margin, 1e-9)) ** 2
    more = max(2 * steps, min(math.ceil(needed), _MOST_STEPS))
    return f"give or take {error:.1%} in the {steps} steps simulated; set steps={more} to tell"
