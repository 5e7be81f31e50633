"""The example runs, and balance does not change its losses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trimtab.testing import RankPool

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_loop.py"


def run_example(group: dist.ProcessGroup, mode: Any) -> list[float]:
    spec = importlib.util.spec_from_file_location("fsdp2_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses: list[float] = module.train(group, mode)
    return losses


@pytest.mark.slow
def test_the_example_trains_alike_with_and_without_balance(rank_pool: RankPool) -> None:
    balanced = rank_pool.run(2, run_example, "on")
    plain = rank_pool.run(2, run_example, "off")
    assert balanced[0] == balanced[1]
    assert len(balanced[0]) == 3
    assert balanced[0] == pytest.approx(plain[0], rel=1e-5)


def test_balance_takes_few_lines_of_it() -> None:
    assert sum("# balance" in line for line in EXAMPLE.read_text().splitlines()) <= 11
