"""The example plans, trains and loses as one rank does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch.distributed as dist

from trimtab.testing import RankPool

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline_loop.py"


def run_example(group: dist.ProcessGroup) -> list[float]:
    spec = importlib.util.spec_from_file_location("pipeline_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses: list[float] = module.train(group)
    return losses


@pytest.mark.slow
def test_the_example_trains_alike_on_one_rank_and_two(rank_pool: RankPool) -> None:
    (alone,) = rank_pool.run(1, run_example)
    first, second = rank_pool.run(2, run_example)
    assert first == second
    assert len(first) == 3
    assert first == pytest.approx(alone, rel=1e-4)
    assert first[-1] < first[0]
