"""Orders of a pipeline's forwards and backwards, and their times."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.planning.pipeline_schedule import in_flight, rank_actions, step_ns
from trimtab.schema.stages import Schedule


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (4, 1), (4, 4), (4, 9), (3, 32)])
def test_even_1f1b_takes_the_textbook_time(ranks: int, micro_batches: int) -> None:
    forward, backward = np.full((1, ranks), 10), np.full((1, ranks), 20)
    times = step_ns("1f1b", ranks, micro_batches, forward, backward, np.zeros((1, ranks - 1), dtype=np.int64))
    assert times.tolist() == [(micro_batches + ranks - 1) * 30]


def test_even_interleaving_divides_the_bubble_by_the_chunks() -> None:
    forward, backward, send = np.full((1, 8), 10), np.full((1, 8), 20), np.zeros((1, 7), dtype=np.int64)
    assert step_ns("interleaved", 4, 8, forward, backward, send).tolist() == [8 * 60 + 3 * 30]


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "micro_batches"),
    [
        ("1f1b", 4, 1, 7),
        ("1f1b", 4, 1, 2),
        ("interleaved", 4, 2, 8),
        ("interleaved", 4, 3, 10),
        ("interleaved", 4, 2, 3),
    ],
)
def test_every_action_runs_once_and_backwards_follow_forwards(
    schedule: Schedule, ranks: int, chunks: int, micro_batches: int
) -> None:
    for rank, actions in enumerate(rank_actions(schedule, ranks, chunks, micro_batches)):
        assert len(set(actions)) == len(actions) == 2 * chunks * micro_batches
        done = set()
        for action in actions:
            assert action.stage % ranks == rank
            assert not action.backward or (action.stage, action.micro_batch) in done
            done.add((action.stage, action.micro_batch))


def test_in_flight_is_what_torch_holds() -> None:
    assert in_flight("1f1b", 4, 1, 8) == (4, 3, 2, 1)
    assert in_flight("1f1b", 4, 1, 2) == (2, 2, 2, 1)
    first = in_flight("interleaved", 2, 2, 4)
    assert sum(first[0::2]) >= (2 - 1) * 2 + 2 * 1 + 1  # warm-up forwards of rank 0, and the one that follows


def test_a_slow_stage_sets_the_pace_and_transfers_delay_those_who_wait() -> None:
    forward, backward = np.array([[1, 10], [10, 1]]), np.array([[2, 20], [20, 2]])
    send = np.array([[0], [0]])
    assert step_ns("1f1b", 2, 10, forward, backward, send).tolist() == [1 + 300 + 2, 300]
    slower = step_ns("1f1b", 2, 10, forward, backward, send + 5)
    assert slower[0] == 1 + 5 + 300 + 5 + 2
    assert slower[1] >= 300
