"""Long simulations say where they are, also where nobody watches a terminal; short ones are silent there."""

from __future__ import annotations

import io

from rich.console import Console

from trimtab.cli.simulation_progress import SimulationProgress


def test_lines_come_now_and_then_once_it_takes_long() -> None:
    written = io.StringIO()
    times = iter([0.0, 1.0, 6.0, 6.0, 7.0, 20.9, 21.0, 21.0])
    with SimulationProgress(Console(file=written), lambda: next(times)) as progress:
        for step in range(1, 6):
            progress.update(f"simulating all, step {step} of 5")
    assert written.getvalue().splitlines() == ["simulating all, step 2 of 5", "simulating all, step 5 of 5"]
