"""Sharded attention alone: heads end where they belong, whatever the number of KV heads."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import InvalidPlanError, SettingsError
from trimtab.runtime.attention import packed_attention
from trimtab.runtime.flight import Lane
from trimtab.runtime.groups import NodeGroups
from trimtab.runtime.ulysses import ShardedSequences, check_degrees
from trimtab.schema.sequences import SequenceGroup
from trimtab.testing import run_threads

MATRIX = [(8, 2, 8), (8, 2, 2), (8, 8, 8), (8, 1, 8), (28, 4, 4), (6, 6, 3), (6, 2, 6)]
LENGTHS = (7, 1, 12)
WHOLE = (3, 5)


def nodes_of(group: dist.ProcessGroup, *, overlap: bool = True) -> NodeGroups:
    """One level: all ranks."""
    lane = Lane(torch.device("cpu"), overlap=overlap)
    return NodeGroups(rank=group.rank(), by_degree={group.size(): group}, lane=lane)


def projections(heads: int, kv_heads: int, length: int, seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(length, count, 4) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def attend(parts: list[torch.Tensor], lengths: tuple[int, ...], sharded: ShardedSequences | None) -> torch.Tensor:
    query, key, value = (part.transpose(0, 1)[None] for part in parts)
    found, _ = packed_attention(
        nn.Identity(), query, key, value, None, packed_lengths=lengths, sharded_sequences=sharded
    )
    return found[0]


@pytest.mark.parametrize(("heads", "kv_heads", "degree"), MATRIX)
@pytest.mark.parametrize("overlap", [True, False])
def test_outputs_and_gradients_are_those_of_one_rank(heads: int, kv_heads: int, degree: int, overlap: bool) -> None:
    shared = [part.requires_grad_() for part in projections(heads, kv_heads, sum(LENGTHS), 0)]
    expected = attend(shared, LENGTHS, None)
    expected.square().sum().backward()
    group = SequenceGroup(degree=degree, first_rank=0, rows=(0, 1, 2), lengths=LENGTHS)

    def on_rank(ranks: dist.ProcessGroup) -> tuple[torch.Tensor, ...]:
        begin, end = group.cuts[ranks.rank() : ranks.rank() + 2]
        own = [part.detach()[begin:end] for part in shared]
        alone = projections(heads, kv_heads, sum(WHOLE), 1 + ranks.rank())
        joined = [torch.cat(both).requires_grad_() for both in zip(own, alone, strict=True)]
        found = attend(joined, WHOLE, ShardedSequences((group,), nodes_of(ranks, overlap=overlap)))
        found.square().sum().backward()
        torch.testing.assert_close(found[end - begin :], attend(alone, WHOLE, None), rtol=1e-12, atol=1e-14)
        return (found[: end - begin].detach(), *(part.grad[: end - begin] for part in joined))

    found = run_threads(degree, on_rank, timeout_s=40)
    wanted = [expected.detach(), *(part.grad for part in shared)]
    for pieces, whole in zip(zip(*found, strict=True), wanted, strict=True):
        torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("heads", "kv_heads", "degree"), MATRIX)
def test_every_query_head_meets_its_own_kv_head(heads: int, kv_heads: int, degree: int) -> None:
    group = SequenceGroup(degree=degree, first_rank=0, rows=(0,), lengths=(11,))

    def on_rank(ranks: dist.ProcessGroup) -> torch.Tensor:
        tokens = group.shares[ranks.rank()]
        query, key, value = projections(heads, kv_heads, tokens, ranks.rank())
        marked = torch.arange(kv_heads, dtype=torch.float64)[None, :, None].expand_as(value)
        return attend([query, key, marked], (), ShardedSequences((group,), nodes_of(ranks)))

    owner = torch.arange(heads) // (heads // kv_heads)
    for found in run_threads(degree, on_rank, timeout_s=40):
        torch.testing.assert_close(found, owner.double()[None, :, None].expand_as(found))


def test_changing_one_sequence_leaves_its_neighbours_bitwise_alone() -> None:
    group = SequenceGroup(degree=2, first_rank=0, rows=(0, 1, 2), lengths=LENGTHS)
    before = projections(4, 2, sum(LENGTHS), 0)
    after = [part.clone() for part in before]
    for part in after:
        part[:7] += 1.0  # the first sequence alone

    def on_rank(ranks: dist.ProcessGroup) -> list[torch.Tensor]:
        begin, end = group.cuts[ranks.rank() : ranks.rank() + 2]
        sharded = ShardedSequences((group,), nodes_of(ranks))
        return [attend([part[begin:end] for part in parts], (), sharded) for parts in (before, after)]

    first, second = (torch.cat(rows) for rows in zip(*run_threads(2, on_rank), strict=True))
    assert torch.equal(first[7:], second[7:])
    assert not torch.equal(first[:7], second[:7])


def test_heads_that_do_not_split_are_refused_with_the_legal_degrees() -> None:
    check_degrees(28, 4, (1, 2, 4, 28))
    with pytest.raises(SettingsError, match=r"degree 8 does not split 28 heads with 4 KV heads.*: 1, 2, 4, 28$"):
        check_degrees(28, 4, (2, 4, 8))


def test_a_group_nobody_made_is_named() -> None:
    def on_rank(ranks: dist.ProcessGroup) -> None:
        group = SequenceGroup(degree=2, first_rank=1, rows=(9,), lengths=(4,))
        with pytest.raises(InvalidPlanError, match=r"sample 9: rank \d has no group of 2 ranks that begins at rank 1"):
            nodes_of(ranks).of(group)

    run_threads(2, on_rank)


def test_lengths_must_cover_what_is_not_shared() -> None:
    group = SequenceGroup(degree=1, first_rank=0, rows=(0,), lengths=(4,))
    sharded = ShardedSequences((group,), NodeGroups(rank=0, by_degree={}, lane=Lane(torch.device("cpu"))))
    with pytest.raises(ValueError, match="with 4 tokens of shared sequences must sum to the sequence length 9"):
        attend(projections(2, 2, 9, 0), (4,), sharded)
