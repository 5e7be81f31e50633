"""The figures that docs/simulate.md gives of a bundled scenario are those the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trimtab.cli.simulated_job import SimulatedJob
from trimtab.simulate.run import simulate

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"
COLUMNS = ("step", "data", "rollout", "inference", "update", "tokens/GPU/s", "attention ratio")


def documented() -> dict[str, list[str]]:
    rows = PAGE.read_text().partition(f"| strategy | {' | '.join(COLUMNS)} |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.strip().splitlines()[1:]]
    return {re.findall(r"`([\w-]+)`", name)[0]: figures for name, *figures in cells}


@pytest.mark.slow
def test_the_table_of_the_image_heavy_scenario() -> None:
    table = documented()
    rows = {row.name: row for row in simulate(SimulatedJob("flexrl-image-heavy", []).job({})).strategies}
    assert list(table) == list(rows)
    for name, figures in table.items():
        row = rows[name]
        seconds = [milliseconds / 1e3 for milliseconds in (row.step_ms, *row.phases.values())]
        found = [*seconds, row.tokens_per_gpu_s, row.attention_ratio]
        for column, text, value in zip(COLUMNS, figures, found, strict=True):
            digits = len(text.partition(".")[2])
            assert f"{value:,.{digits}f}" == text, (name, column)
