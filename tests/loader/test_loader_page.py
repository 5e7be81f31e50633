"""The recipes of docs/loader.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.loader.media_cases import scanned

from trimtab.schema.table_file import write_table

PAGE = Path(__file__).parents[2] / "docs" / "loader.md"


def run_recipe(marker: str) -> dict[str, Any]:
    """Run the one code block of the page that holds ``marker``; returns its names."""
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if marker in block]
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(code, "docs/loader.md", "exec"), names)
    return names


def test_the_loop_of_ones_own_sees_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    media = scanned(tmp_path)
    write_table(media.table, tmp_path / "train.parquet")
    monkeypatch.chdir(tmp_path)
    run_recipe("NodePool(")
    steps = capsys.readouterr().out.splitlines()
    assert len(steps) == 2
    ids = media.table.sample_ids.to_pylist()
    assert sorted(found for step in steps for found in ids if f"'{found}'" in step) == sorted(ids)


def test_the_executor_of_several_ranks_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    try:
        names = run_recipe("open_executor(")
        names["executor"].close()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
