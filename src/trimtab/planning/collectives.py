"""The order in which ranks meet: whether every rank issues the same collectives, checked without running anything.

A collective ends only when every member of its group has reached it. If two ranks reach two collectives in different
orders, both wait for ever. So the sequence each rank will issue is written down from the plan, and played through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InvalidPlanError
from trimtab.planning.sequence_slices import DEFAULT_PACKING, attention_schedule, check_nested, sequence_groups
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequenceGroup, SequencePacking


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


def step_order(
    plan: StepPlan,
    *,
    vision_gathers: int = 0,
    language_gathers: int = 0,
    tokens: NDArray[np.int64] | None = None,
    packing: SequencePacking = DEFAULT_PACKING,
) -> list[list[Collective]]:
    """What each rank issues in one optimizer step, forward and backward.

    In each micro-batch: gathers of sharded vision blocks, the exchange of embeddings where any rank encodes, then for
    each language block its gather and the exchanges of the sequence groups the rank is in, in the order of
    ``attention_schedule``. Backward is the same in reverse. Each exchange is taken to block the next one, as on a
    single stream.

    Args:
        plan: of the step.
        vision_gathers: collectives per micro-batch in which ranks meet for sharded vision blocks (FSDP2, ZeRO-3).
        language_gathers: the same for language blocks; 0 plays one block without its gather.
        tokens: int64 [N], length of each sample, which decides the sequences that travel together; None: each alone.
        packing: see ``sequence_groups``.

    Raises:
        InvalidPlanError: nodes of sharded sequences overlap without nesting.
    """
    lengths = np.full(len(plan), packing.tokens) if tokens is None else tokens
    groups = [sequence_groups(plan, lengths, m, packing=packing) for m in range(plan.micro_batches)]
    for of_micro_batch in groups:
        check_nested(of_micro_batch, plan.ranks)
    return [_rank_order(plan, rank, vision_gathers, language_gathers, groups) for rank in range(plan.ranks)]


def first_difference(traces: Sequence[Sequence[str]], ranks: Sequence[int] | None = None) -> str | None:
    """Where recorded traces of one group's members part, in words; None where they are equal.

    Args:
        traces: what each rank issued, in order.
        ranks: the members; by default 0, 1, …
    """
    members = range(len(traces)) if ranks is None else ranks
    longest = max((len(trace) for trace in traces), default=0)
    for index in range(longest):
        issued = [trace[index] if index < len(trace) else "nothing" for trace in traces]
        other = next((member for member, name in enumerate(issued) if name != issued[0]), None)
        if other is not None:
            first, second = f"rank {members[0]} issued {issued[0]}", f"rank {members[other]} issued {issued[other]}"
            return f"collective {index}: {first}, {second}"
    return None


def first_group_difference(traces: Sequence[Sequence[tuple[tuple[int, ...], str]]]) -> str | None:
    """Where recorded traces of collectives of several groups part, in words; None where every group's are equal.

    Collectives of all ranks are compared first, then each smaller group's among its members.

    Args:
        traces: what each rank issued, in order: the ranks of its group (empty: all) and its name.
    """
    groups = sorted(
        {ranks for trace in traces for ranks, _ in trace}, key=lambda ranks: (bool(ranks), -len(ranks), ranks)
    )
    for ranks in groups:
        members = ranks or range(len(traces))
        of_group = [[name for group, name in traces[member] if group == ranks] for member in members]
        found = first_difference(of_group, members)
        if found:
            return f"in the group of ranks {list(ranks)}, counted within it, {found}" if ranks else found
    return None


def _rank_order(
    plan: StepPlan,
    rank: int,
    vision_gathers: int,
    language_gathers: int,
    groups: Sequence[Sequence[SequenceGroup]],
) -> list[Collective]:
    everyone = tuple(range(plan.ranks))
    order: list[Collective] = []
    for index in range(plan.micro_batches):
        meetings = [(f"vision gather {n}", everyone) for n in range(vision_gathers)]
        if bool((plan.units.micro_batch == index).any()):
            meetings.append(("embeddings", everyone))
        own = [group for group in groups[index] if rank in group.ranks]
        for layer in range(max(1, language_gathers)):
            if language_gathers:
                meetings.append((f"language gather {layer}", everyone))
            meetings += [(f"layer {layer}: {name}", ranks) for name, ranks in _head_exchanges(own)]
        order += [Collective(f"micro-batch {index}: {name} forward", ranks) for name, ranks in meetings]
        order += [Collective(f"micro-batch {index}: {name} backward", ranks) for name, ranks in reversed(meetings)]
    return order


def _head_exchanges(own: Sequence[SequenceGroup]) -> list[tuple[str, tuple[int, ...]]]:
    """The exchanges one layer's attention starts on a rank of these groups, in order."""
    started = {"scatter": "to heads", "attend": "to tokens"}
    return [
        (f"samples {list(own[index].rows)} {started[step]}", tuple(own[index].ranks))
        for step, index in attention_schedule(len(own))
        if step in started
    ]


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
