"""The figures that docs/simulate.md gives of a bundled scenario are those the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trimtab.cli.simulated_job import SimulatedJob
from trimtab.simulate.run import simulate

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "simulate.md"
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


@pytest.mark.slow
@pytest.mark.parametrize("page", ["simulate.md", "papers.md"])
def test_the_gains_of_the_pipelines_scenario(page: str) -> None:
    text = " ".join((DOCS / page).read_text().split())
    (told,) = re.findall(
        r"`trimtab simulate omnibal-6b-20b`, over four, prints ([\d.]+), ([\d.]+) and ([\d.]+\d)", text
    )
    first, *others = simulate(SimulatedJob("omnibal-6b-20b", []).job({})).strategies
    assert [f"{row.tokens_per_gpu_s / first.tokens_per_gpu_s:.2f}" for row in others] == list(told)
