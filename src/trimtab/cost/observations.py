"""Recorded times of one phase, turned into what coefficients are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.cost.fit import MeasuredStep
from trimtab.cost.rank_work import RankWork


@dataclass(frozen=True, eq=False, kw_only=True)
class PhaseRecord:
    """One phase ("language" or "vision") of one step on all ranks.

    Attributes:
        work: what each rank computed in it.
        compute_ms: how long, one entry a rank.
        includes_waiting: ``compute_ms`` counts waiting for other ranks too, so only the slowest rank's time is known.
    """

    work: RankWork
    compute_ms: Sequence[float]
    includes_waiting: bool


def observations(records: Sequence[PhaseRecord]) -> list[MeasuredStep]:
    """One observation a rank and step; one a step, of the slowest rank, where times include waiting.

    Ranks that have neither work nor time are left out.
    """
    result = []
    for record in records:
        if record.includes_waiting:
            result.append(MeasuredStep(work=record.work, slowest_ms=float(max(record.compute_ms, default=0.0))))
        else:
            result += [
                MeasuredStep(work=_of_rank(record.work, rank), slowest_ms=float(time))
                for rank, time in enumerate(record.compute_ms)
            ]
    return [one for one in result if one.slowest_ms != 0 or np.any(one.work.samples)]


def _of_rank(work: RankWork, rank: int) -> RankWork:
    own = slice(rank, rank + 1)
    return RankWork(squared_tokens=work.squared_tokens[own], tokens=work.tokens[own], samples=work.samples[own])
