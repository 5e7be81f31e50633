"""Mini-batches of a fixed number of samples, padded to the longest: what packs are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs


def random_batches(samples: int, batch: int, rng: np.random.Generator) -> Packs:
    """Shuffled, ``batch`` samples each; the rest that fills no batch is dropped, as data loaders do."""
    kept = samples // batch * batch
    return _of_equal_size(rng.permutation(samples)[:kept].astype(np.int64), batch)


def length_grouped_batches(tokens: NDArray[np.int64], batch: int, ranks: int, rng: np.random.Generator) -> Packs:
    """Batches of similar length, as LLaVA's training groups them (LengthGroupedSampler).

    Shuffled samples are taken ``batch * ranks`` at a time, and longest first each goes to the rank with fewest tokens
    that has room. The rest that fills no step is dropped. Consecutive ``ranks`` batches run in one step.
    """
    per_step = batch * ranks
    steps = len(tokens) // per_step
    rows = rng.permutation(len(tokens))[: steps * per_step].reshape(steps, per_step)
    rows = np.take_along_axis(rows, np.argsort(-tokens[rows], axis=1, kind="stable"), axis=1)
    held = np.zeros((steps, ranks), dtype=np.int64)
    taken = np.zeros((steps, ranks), dtype=np.int64)
    batches = np.zeros((steps, ranks, batch), dtype=np.int64)
    every = np.arange(steps)
    for place in range(per_step):
        row = rows[:, place]
        rank = np.where(taken < batch, held, np.iinfo(np.int64).max).argmin(axis=1)
        batches[every, rank, taken[every, rank]] = row
        taken[every, rank] += 1
        held[every, rank] += tokens[row]
    return _of_equal_size(batches.ravel(), batch)


def _of_equal_size(rows: NDArray[np.int64], batch: int) -> Packs:
    return Packs(rows=rows, offsets=np.arange(0, len(rows) + 1, batch, dtype=np.int64))
