"""In which order the ranks of a pipeline run forwards and backwards, and how long a step takes in that order.

1F1B and interleaved 1F1B (Narayanan et al., arXiv 2104.04473), with the warm-ups of torch.distributed.pipelining:
micro-batches need not be a multiple of the ranks, but of the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.schema.stages import Schedule

MAX_MICRO_BATCHES = 4096  # a prediction walks through every one, on every stage
MAX_PASSES = 65_536
_PASSES_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class Action:
    """One forward or backward of one micro-batch on one stage."""

    stage: int
    backward: bool
    micro_batch: int


def rounds(ranks: int, micro_batches: int) -> int:
    """Rounds in which an interleaved schedule goes through the micro-batches; it needs a multiple of them."""
    return max(1, micro_batches // ranks)


def rank_actions(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """What each rank runs, in order."""
    return [_actions(schedule, ranks, chunks, micro_batches, rank) for rank in range(ranks)]


def _actions(schedule: Schedule, ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Action]:
    """Warm-up forwards, then a forward and a backward by turns, then the remaining backwards."""
    total = chunks * micro_batches
    behind = ranks - 1 - rank
    if schedule == "1f1b":
        warmup, together = min(micro_batches, behind), micro_batches
    else:
        together = micro_batches // rounds(ranks, micro_batches)
        warmup = min(total, (chunks - 1) * together + 2 * behind)
    order = [_chunk_and_micro_batch(step, chunks, together) for step in range(total)]
    forwards = [Action(chunk * ranks + rank, False, number) for chunk, number in order]
    backwards = [Action((chunks - 1 - chunk) * ranks + rank, True, number) for chunk, number in order]
    turns = [action for pair in zip(forwards[warmup:], backwards, strict=False) for action in pair]
    return [*forwards[:warmup], *turns, *backwards[total - warmup :]]


def _chunk_and_micro_batch(step: int, chunks: int, together: int) -> tuple[int, int]:
    """Every round takes ``together`` micro-batches through one chunk after the other."""
    in_round, within = divmod(step, together * chunks)
    chunk, offset = divmod(within, together)
    return chunk, in_round * together + offset


@lru_cache(maxsize=16)
def in_flight(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """[K], most micro-batches each stage holds activations of at a time."""
    most = [0] * (ranks * chunks)
    for actions in rank_actions(schedule, ranks, chunks, micro_batches):
        held = dict.fromkeys({action.stage for action in actions}, 0)
        for action in actions:
            held[action.stage] += -1 if action.backward else 1
            most[action.stage] = max(most[action.stage], held[action.stage])
    return tuple(most)


@lru_cache(maxsize=4)
def _in_order(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[Action, ...]:
    """All actions such that each comes after those it needs, whatever the times."""
    waiting = rank_actions(schedule, ranks, chunks, micro_batches)
    position = [0] * ranks
    done: set[Action] = set()
    ordered: list[Action] = []
    stages = ranks * chunks
    while len(ordered) < 2 * stages * micro_batches:
        before = len(ordered)
        for rank, actions in enumerate(waiting):
            while position[rank] < len(actions) and _needs(actions[position[rank]], stages) <= done:
                done.add(actions[position[rank]])
                ordered.append(actions[position[rank]])
                position[rank] += 1
        if len(ordered) == before:
            raise InvalidPlanError(f"{schedule} on {ranks} ranks waits for itself; this is a defect of trimtab")
    return tuple(ordered)


def _needs(action: Action, stages: int) -> set[Action]:
    """What another stage must have done before."""
    if not action.backward:
        return {Action(action.stage - 1, False, action.micro_batch)} if action.stage else set()
    if action.stage == stages - 1:
        return {Action(action.stage, False, action.micro_batch)}
    return {Action(action.stage + 1, True, action.micro_batch)}


def at_once(passes: int) -> int:
    """How many pipelines are walked through together, if each has that many stages times micro-batches."""
    return max(1, _PASSES_AT_ONCE // passes)


def step_ns(
    schedule: Schedule,
    ranks: int,
    micro_batches: int,
    forward_ns: NDArray[np.int64],
    backward_ns: NDArray[np.int64],
    send_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Time of a step, every dependency honoured; transfers delay who waits for them, and no one else.

    Args:
        schedule: the order.
        ranks: P; stage k runs on rank ``k % P``.
        micro_batches: of a step.
        forward_ns: int64 [N, K], of each stage, for N pipelines at once.
        backward_ns: int64 [N, K], recomputation included.
        send_ns: int64 [N, K - 1], transfer from each stage to the next.

    Returns:
        int64 [N], from the first forward to the last backward.
    """
    together = at_once(forward_ns.shape[1] * micro_batches)
    parts = [
        _step_ns(
            schedule,
            ranks,
            micro_batches,
            *(times[first : first + together].T for times in (forward_ns, backward_ns, send_ns)),
        )
        for first in range(0, len(forward_ns), together)
    ]
    return np.concatenate(parts)


def _step_ns(
    schedule: Schedule,
    ranks: int,
    micro_batches: int,
    forward: NDArray[np.int64],
    backward: NDArray[np.int64],
    send: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The same with stages first."""
    stages, count = forward.shape
    clock = np.zeros((ranks, count), dtype=np.int64)
    # What a stage's next forward or backward of a micro-batch waits for: the moment its input is there.
    arrival = np.zeros((2, stages, micro_batches, count), dtype=np.int64)
    duration = np.stack([forward, backward])
    for action in _in_order(schedule, ranks, stages // ranks, micro_batches):
        stage, number, way = action.stage, action.micro_batch, int(action.backward)
        end = np.maximum(clock[stage % ranks], arrival[way, stage, number]) + duration[way, stage]
        clock[stage % ranks] = end
        if action.backward and stage:
            arrival[1, stage - 1, number] = end + send[stage - 1]
        elif not action.backward and stage < stages - 1:
            arrival[0, stage + 1, number] = end + send[stage]
    return np.asarray(clock.max(axis=0))
