"""Packing problems for the tests of samplers."""

from __future__ import annotations

import numpy as np

from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.settings import PackSettings

CAPS = {"tiles": 9, "tokens": 4096}


def vlm_problem(samples: int = 60, seed: int = 0) -> PackProblem:
    """Tiles and tokens of samples with an image each; about 1.6 fit a pack."""
    rng = np.random.default_rng(seed)
    tiles = rng.choice([1, 3, 4, 5], p=[0.2, 0.16, 0.02, 0.62], size=samples)
    return PackProblem.from_columns({"tiles": tiles, "tokens": tiles * 256 + rng.integers(20, 400, samples)}, CAPS)


def pack_sampler(problem: PackProblem | None = None, *, ranks: int = 4, micro_batches: int = 1) -> PackSampler:
    return PackSampler(
        problem or vlm_problem(),
        ranks=ranks,
        micro_batches=micro_batches,
        seed=0,
        settings=PackSettings(window=3, pool=16),
    )


def rows_of(sampler: PackSampler, begin: int, end: int) -> list[int]:
    return [row for step in range(begin, end) for row in sampler.rows(step).tolist()]


def epoch_rows(sampler: PackSampler) -> list[int]:
    """Consume an epoch from where the sampler stands; the rows it trained on."""
    begin = sampler.next_step
    end = sampler.end_of_epoch(begin)
    rows = rows_of(sampler, begin, end)
    for step in range(begin, end):
        sampler.consumed(step)
    return rows
