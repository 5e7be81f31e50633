"""Attention over sequences of different sequence-parallel degrees in one layer, on nested groups of ranks.

Outside attention a rank holds some tokens of every sequence it shares, with all heads; inside, all tokens of it with
its share of the heads (DeepSpeed-Ulysses, arXiv:2309.14509). Each sequence group has a degree of its own (FlexRL, ICLR
2026: FlexUlysses), and its exchanges run beside the attention of the groups before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.errors import SettingsError
from trimtab.planning.sequence_slices import attention_schedule
from trimtab.runtime.flight import Flight, arrive, depart
from trimtab.runtime.groups import NodeGroups
from trimtab.runtime.varlen import varlen_attention
from trimtab.schema.sequences import SequenceGroup


@dataclass(frozen=True, eq=False)
class ShardedSequences:
    """The sequences this rank shares with others; the forward keyword ``sharded_sequences``.

    Attributes:
        groups: in the order they attend, highest degree first; their tokens lie first in the rank's pack.
        nodes: the process groups to exchange in.
    """

    groups: tuple[SequenceGroup, ...]
    nodes: NodeGroups

    @property
    def held_tokens(self) -> tuple[int, ...]:
        """Tokens of each group on this rank."""
        return tuple(group.shares[self.nodes.rank - group.first_rank] for group in self.groups)


def check_degrees(heads: int, kv_heads: int, degrees: Iterable[int]) -> None:
    """Check that heads split evenly at every degree.

    Raises:
        SettingsError: names the degree and the legal ones.
    """

    def legal(degree: int) -> bool:
        return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)

    for degree in degrees:
        if not legal(degree):
            allowed = [each for each in range(1, heads + 1) if legal(each)]
            raise SettingsError(
                f"sequence-parallel degree {degree} does not split {heads} heads with {kv_heads} KV heads evenly; "
                f"legal degrees of this model: {', '.join(map(str, allowed))}"
            )


def sharded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sharded: ShardedSequences,
    whole_lengths: Sequence[int],
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Causal attention within every sequence, shared ones and whole ones.

    Args:
        query: [L, Hq, D], after rotary embedding: this rank's tokens of ``sharded.groups``, then its whole sequences.
        key: [L, Hkv, D], not repeated.
        value: [L, Hkv, D].
        sharded: the shared sequences.
        whole_lengths: of the sequences this rank holds alone; their attention covers the first and last exchange.
        scaling: softmax scale.
        dropout: attention dropout probability.

    Returns:
        [L, Hq, D].
    """
    first, rest = _halves(whole_lengths)
    sizes = [*sharded.held_tokens, sum(first), sum(rest)]
    *shared, beside_first, beside_last = zip(*(rows.split(sizes) for rows in (query, key, value)), strict=True)
    exchanges = [_GroupAttention(group, sharded.nodes) for group in sharded.groups]
    outputs: list[Tensor] = [query] * len(exchanges)

    def attend_whole(parts: tuple[Tensor, ...], lengths: Sequence[int]) -> None:
        q, k, v = parts
        outputs.append(varlen_attention(q, k, v, lengths, scaling=scaling, dropout=dropout))

    schedule = attention_schedule(len(exchanges))
    for place, (step, index) in enumerate(schedule):
        if place == len(schedule) - 1:
            attend_whole(beside_last, rest)
        if step == "scatter":
            exchanges[index].scatter(*shared[index])
        elif step == "attend":
            exchanges[index].attend(scaling=scaling, dropout=dropout)
        else:
            outputs[index] = exchanges[index].collect()
        if place == 0:
            attend_whole(beside_first, first)
    return torch.cat(outputs)


class _GroupAttention:
    """One layer's attention of one sequence group on this rank (T tokens here, S in all, degree p)."""

    def __init__(self, group: SequenceGroup, nodes: NodeGroups) -> None:
        self._group = group
        self._tokens = group.shares[nodes.rank - group.first_rank]
        even = (self._tokens,) * group.degree
        process_group, lane = nodes.of(group), nodes.lane
        self._to_heads = Flight(process_group, even, group.shares, lane)
        self._to_tokens = Flight(process_group, group.shares, even, lane)
        self._stand_in: Tensor | None = None
        self._heads = (0, 0)

    def scatter(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Start to turn tokens with all heads into all tokens with a share of the heads."""
        degree, kv_heads = self._group.degree, key.shape[1]
        if degree > kv_heads:  # each rank needs a KV head of its own
            key, value = (part.repeat_interleave(degree // kv_heads, dim=1) for part in (key, value))
        by_rank = [part.unflatten(1, (degree, -1)) for part in (query, key, value)]
        self._heads = by_rank[0].shape[2], by_rank[1].shape[2]
        rows = torch.cat(by_rank, dim=2).transpose(0, 1).flatten(0, 1)  # [p * T, (Hq + 2 Hkv) / p, D]
        self._stand_in = depart(rows, self._to_heads)

    def attend(self, *, scaling: float | None, dropout: float) -> None:
        """Await that, attend, and start the way back."""
        assert self._stand_in is not None
        received = arrive(self._stand_in, self._to_heads)  # [S, (Hq + 2 Hkv) / p, D]
        heads, kv_heads = self._heads
        query, key, value = received.split([heads, kv_heads, kv_heads], dim=1)
        attended = varlen_attention(query, key, value, self._group.lengths, scaling=scaling, dropout=dropout)
        self._stand_in = depart(attended, self._to_tokens)

    def collect(self) -> Tensor:
        """Await the way back: [T, Hq, D]."""
        assert self._stand_in is not None
        received = arrive(self._stand_in, self._to_tokens)  # [p * T, Hq / p, D]
        return received.unflatten(0, (self._group.degree, self._tokens)).transpose(0, 1).flatten(1, 2)


def _halves(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """The sequences in two runs of about equal attention work."""
    work, half = 0, sum(length * length for length in lengths) / 2
    for place, length in enumerate(lengths):
        work += length * length
        if work >= half:
            return list(lengths[: place + 1]), list(lengths[place + 1 :])
    return list(lengths), []
