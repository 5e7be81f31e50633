"""The peak of a rank, walked through by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.planning.pipeline_memory import peak_bytes
from trimtab.schema.stages import LayerProfile, StagePlan


def column(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


PROFILE = LayerProfile(
    names=("a", "b", "c", "d"),
    kinds=("vision", "vision", "language", "head"),
    forward_ns=column(1, 1, 1, 1),
    backward_ns=column(2, 2, 2, 2),
    recompute_ns=column(1, 1, 1, 0),
    activation_bytes=column(100, 200, 300, 50),
    recomputed_bytes=column(10, 20, 30, 50),
    workspace_bytes=column(1, 2, 3, 4),
    parameters=column(1, 1, 1, 1),
    state_bytes=column(1000, 2000, 3000, 4000),
    boundary_bytes=column(5, 6, 7, 0),
    boundary_ns=column(0, 0, 0, 0),
)


def plan(bounds: tuple[int, ...], recompute: tuple[tuple[int, ...], ...], ranks: int, chunks: int = 1) -> StagePlan:
    stages = len(bounds) - 1
    return StagePlan(
        method="test",
        schedule="1f1b" if chunks == 1 else "interleaved",
        ranks=ranks,
        chunks=chunks,
        micro_batches=4,
        bounds=bounds,
        recompute=recompute,
        in_flight=(1,) * stages,
        forward_ns=(1,) * stages,
        backward_ns=(1,) * stages,
        send_ns=(0,) * (stages - 1),
        step_ns=1,
        lower_bound_ns=1,
        memory=(),
        memory_bytes=0,
    )


def test_the_first_rank_holds_two_micro_batches_and_the_last_one() -> None:
    first = 3000 + 2 * (100 + 200 + 6) + 2  # outputs beside activations, and the workspace of the last layer
    last = 7000 + 300 + 50 + 4
    assert peak_bytes(plan((0, 2, 4), ((), ()), 2), PROFILE) == (first, last)


def test_what_recomputes_is_held_once_when_later_layers_are_done() -> None:
    # backward of "a", which recomputes: "b" of that micro-batch is gone; backward of "b": all is there
    first = 3000 + (10 + 200 + 6) + max(10 + 200 + 6 + 2, 10 + 90 + 1 + 6)
    assert peak_bytes(plan((0, 2, 4), ((0,), ()), 2), PROFILE)[0] == first
    last = 7000 + max(30 + 50 + 4, 30 + 270 + 3)
    assert peak_bytes(plan((0, 2, 4), ((), (2,)), 2), PROFILE)[1] == last


def test_interleaved_ranks_hold_both_of_their_stages() -> None:
    peaks = peak_bytes(plan((0, 1, 2, 3, 4), ((),) * 4, 2, 2), PROFILE)
    assert peaks[0] > 4000 + 100 + 300
    assert peaks[1] > 6000 + 200 + 50
