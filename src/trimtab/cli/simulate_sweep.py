"""``trimtab simulate --sweep``: the fastest strategy with settings varied, and what is recommended of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

from trimtab.cli.simulate_tables import print_recommendation, print_simulation, print_sweep
from trimtab.cli.simulated_job import SimulatedJob
from trimtab.cli.simulation_progress import SimulationProgress
from trimtab.simulate.choices import no_choices
from trimtab.simulate.doubt import doubts
from trimtab.simulate.how_to_run import how_to_run
from trimtab.simulate.job import Job
from trimtab.simulate.remedies import Unfit, remedy
from trimtab.simulate.run import Simulation, StrategyResult, simulate
from trimtab.simulate.sweep import Overrides, Recommendation, fastest, recommend, sweep, without_effect
from trimtab.simulate.sweep_as_trained import nearest_as_trained, runs_otherwise


def run_sweep(as_json: bool, maker: SimulatedJob, job: Job, found: Simulation, swept: Mapping[str, list[str]]) -> int:
    """Simulate every value, print.

    Args:
        as_json: one JSON object instead of tables.
        maker: makes the job with settings changed.
        job: with nothing changed.
        found: every strategy of that job.
        swept: values of each setting.
    """
    base, acting = fastest(found), maker.acting(swept)
    _say_what_acts_otherwise(maker, swept)
    with SimulationProgress() as progress:

        def at(changed: Overrides) -> StrategyResult:
            said = "sweeping " + " ".join(f"{name}={value}" for name, value in changed.items())
            changed_job = maker.job({**changed, "strategies": f"[{base.name}]"})
            return simulate(changed_job, progress=lambda at: progress.update(f"{said}: {at}")).strategies[0]

        tried = sweep(acting, at)
        best = recommend(base, tried.points, at)
        recommended = maker.job(best.settings)
        if not best.fits:
            varied = best.settings
            unfit = Unfit(job=recommended, result=best.result, run=lambda changed: at({**varied, **changed}))
            given = Unfit(job=job, result=base, run=at) if varied else None
            best = replace(best, remedy=remedy(unfit, given))
        nearest = nearest_as_trained(best, acting, maker.job, progress.update)
    run = how_to_run(recommended, best.strategy, nearest, shared_by=best.result.shared_by)
    doubted = doubts(found, best, runs_otherwise=runs_otherwise(best, recommended))
    standings = {
        (name, value): "" if (name, value) in tried.refused else _standing(maker, best, name, value)
        for name, values in acting.items()
        for value in values
    }
    idle, fixed = without_effect(base, tried), no_choices(tried.points)
    if as_json:
        told = {"sweep": tried.to_json(standings), "without_effect": idle, "not_recommended": fixed}
        print(json.dumps({**found.to_json(), **told, "recommended": best.to_json(run, doubted)}))
        return 0
    print_simulation(job, found)
    print_sweep(base, tried, standings, idle)
    print_recommendation(found, best, run, doubted, fixed)
    return 0


def _standing(maker: SimulatedJob, best: Recommendation, name: str, value: str) -> str:
    if best.fits and best.settings.get(name) == value:
        return "recommended"
    return "as given" if maker.is_given(name, value) else ""


def _say_what_acts_otherwise(maker: SimulatedJob, swept: Mapping[str, list[str]]) -> None:
    for name, values in swept.items():
        acts = [(value, *maker.acting({name: [value]})[name]) for value in values]
        if others := [f"{name}={value} acts as {other}" for value, other in acts if other != value]:
            print(f"{', '.join(others)}: the next lower that these heads and ranks allow", file=sys.stderr)
