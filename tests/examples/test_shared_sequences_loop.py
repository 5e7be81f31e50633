"""The example shares its long sequence, and loses what whole samples lose."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch.distributed as dist

from trimtab.testing import RankPool

EXAMPLE = Path(__file__).parents[2] / "examples" / "shared_sequences_loop.py"


def run_example(group: dist.ProcessGroup, max_degree: int) -> tuple[list[float], list[int]]:
    spec = importlib.util.spec_from_file_location("shared_sequences_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[list[float], list[int]] = module.train(max_degree)
    return found


@pytest.mark.slow
def test_the_example_trains_alike_with_shared_and_whole_sequences(rank_pool: RankPool) -> None:
    shared = rank_pool.run(2, run_example, 2)
    whole = rank_pool.run(2, run_example, 1)
    assert shared[0] == shared[1]
    assert shared[0][1] == [2, *[1] * 6]
    assert whole[0][1] == [1] * 7
    assert shared[0][0] == pytest.approx(whole[0][0], rel=1e-5)
    assert shared[0][0][-1] < shared[0][0][0]
