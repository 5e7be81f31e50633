"""The order in which ranks meet: whether every rank issues the same collectives, checked without running anything.

A collective ends only when every member of its group has reached it. If two ranks reach two collectives in different
orders, both wait for ever. So the sequence each rank will issue is written down from the plan, and played through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.errors import InvalidPlanError
from trimtab.schema.plans import StepPlan


@dataclass(frozen=True, slots=True)
class Collective:
    """One meeting of a group.

    Attributes:
        name: what it does, e.g. "micro-batch 0: embeddings forward".
        ranks: the members, ascending.
    """

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name!r} of ranks {list(self.ranks)}"


def check_order(sequences: Sequence[Sequence[Collective]]) -> None:
    """Play every rank's sequence; each collective blocks until all its members stand at it.

    Args:
        sequences: what each rank issues, in order.

    Raises:
        InvalidPlanError: ranks would wait for ever; names the first rank that does, its collective, and where the
            member it waits for stands.
    """
    at = [0] * len(sequences)
    waiting: dict[Collective, set[int]] = defaultdict(set)
    ready = list(range(len(sequences)))
    while ready:
        rank = ready.pop()
        if at[rank] == len(sequences[rank]):
            continue
        collective = sequences[rank][at[rank]]
        if rank not in collective.ranks:
            raise InvalidPlanError(f"rank {rank} issues {collective}, of which it is no member")
        waiting[collective].add(rank)
        if len(waiting[collective]) == len(collective.ranks):
            for member in waiting.pop(collective):
                at[member] += 1
                ready.append(member)
    if waiting:
        raise InvalidPlanError(_stuck(sequences, at))


def step_order(plan: StepPlan, *, vision_gathers: int = 0, language_gathers: int = 0) -> list[list[Collective]]:
    """What each rank issues in one optimizer step, forward and backward.

    In each micro-batch: gathers of sharded vision blocks, the exchange of embeddings where any rank encodes, gathers of
    language blocks, and the sequence-parallel groups of the samples that start in it, highest degree first. Backward
    is the same in reverse.

    Args:
        plan: of the step.
        vision_gathers: collectives per micro-batch in which ranks meet for sharded vision blocks (FSDP2, ZeRO-3).
        language_gathers: the same for language blocks.
    """
    return [_rank_order(plan, rank, vision_gathers, language_gathers) for rank in range(plan.ranks)]


def first_difference(traces: Sequence[Sequence[str]]) -> str | None:
    """Where recorded traces of one group's members part, in words; None where they are equal.

    Args:
        traces: what each rank issued, in order.
    """
    longest = max((len(trace) for trace in traces), default=0)
    for index in range(longest):
        issued = [trace[index] if index < len(trace) else "nothing" for trace in traces]
        other = next((rank for rank, name in enumerate(issued) if name != issued[0]), None)
        if other is not None:
            return f"collective {index}: rank 0 issued {issued[0]}, rank {other} issued {issued[other]}"
    return None


def _rank_order(plan: StepPlan, rank: int, vision_gathers: int, language_gathers: int) -> list[Collective]:
    everyone = tuple(range(plan.ranks))
    order: list[Collective] = []
    for index in range(plan.micro_batches):
        forward = [f"vision gather {n}" for n in range(vision_gathers)]
        if bool((plan.units.micro_batch == index).any()):
            forward.append("embeddings")
        forward += [f"language gather {n}" for n in range(language_gathers)]
        meetings = [(name, everyone) for name in forward] + _sequence_groups(plan, rank, index)
        order += [Collective(f"micro-batch {index}: {name} forward", ranks) for name, ranks in meetings]
        order += [Collective(f"micro-batch {index}: {name} backward", ranks) for name, ranks in reversed(meetings)]
    return order


def _sequence_groups(plan: StepPlan, rank: int, micro_batch: int) -> list[tuple[str, tuple[int, ...]]]:
    """The sharded samples ``rank`` takes part in; groups nest, so highest degree first is one order for all."""
    last = plan.rank + plan.degree
    mine = (plan.micro_batch == micro_batch) & (plan.degree > 1) & (plan.rank <= rank) & (rank < last)
    rows = np.flatnonzero(mine)
    rows = rows[np.lexsort((rows, -plan.degree[rows]))]
    return [(f"sample {row}", tuple(range(int(plan.rank[row]), int(last[row])))) for row in rows.tolist()]


def _stuck(sequences: Sequence[Sequence[Collective]], at: Sequence[int]) -> str:
    rank = next(rank for rank, done in enumerate(at) if done < len(sequences[rank]))
    collective = sequences[rank][at[rank]]
    absent = next(
        member
        for member in collective.ranks
        if at[member] == len(sequences[member]) or sequences[member][at[member]] != collective
    )
    stands = "has ended" if at[absent] == len(sequences[absent]) else f"waits at {sequences[absent][at[absent]]}"
    return f"ranks would wait for ever: rank {rank} waits at {collective}, but rank {absent} {stands}"
