"""A short sweep of made-up batches that tells the cost terms apart, for measuring where no steps are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trimtab.cost.fit import MeasuredStep
from trimtab.cost.rank_work import RankWork
from trimtab.errors import SettingsError

_SHORTEST = 16


def sweep_batches(max_tokens: int, batches: int = 32, seed: int = 0) -> list[list[int]]:
    """Sequence lengths of each batch: from one long sequence to many short ones, totals varied too.

    Args:
        max_tokens: tokens of the fullest batch.
        batches: how many.
        seed: the same seed gives the same batches.

    Raises:
        SettingsError: there is no room to vary lengths.
    """
    if max_tokens < 8 * _SHORTEST or batches < 1:
        raise SettingsError(f"a sweep of {batches} batches needs at least {8 * _SHORTEST} tokens, found {max_tokens}")
    rng = np.random.default_rng(seed)
    totals = np.linspace(max_tokens / 4, max_tokens, batches)
    counts = np.exp(rng.uniform(0, np.log(max_tokens / 4 / _SHORTEST), batches))
    return [
        [max(_SHORTEST, int(total / count))] * max(1, round(float(count)))
        for total, count in zip(rng.permutation(totals), counts, strict=True)
    ]


def measure_sweep(
    batches: Sequence[Sequence[int]], step_ms: Callable[[Sequence[int]], float], *, warm_up: int = 2
) -> list[MeasuredStep]:
    """Time each batch on this rank.

    Args:
        batches: sequence lengths, as from ``sweep_batches``.
        step_ms: runs forward and backward of the language model on packed sequences of these lengths and returns the
            compute time in milliseconds.
        warm_up: runs of the first batch whose time is thrown away.
    """
    for _ in range(warm_up):
        step_ms(batches[0])
    steps = []
    for lengths in batches:
        work = RankWork.of(np.array(lengths, dtype=np.int64), np.zeros(len(lengths), dtype=np.int64), 1)
        steps.append(MeasuredStep(work=work, slowest_ms=step_ms(lengths)))
    return steps
