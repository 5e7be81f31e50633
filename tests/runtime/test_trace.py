"""The debug mode finds a rank that issues other collectives, before ranks wait for each other for ever."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trimtab.errors import RankDisagreementError
from trimtab.runtime.groups import NodeGroups, node_groups
from trimtab.runtime.trace import CollectiveTrace
from trimtab.testing import RankPool


def issue(group: dist.ProcessGroup, flipped_rank: int | None, before_launch: bool) -> list[str]:
    control = dist.new_group(backend="gloo")
    weight = torch.ones(3, requires_grad=True)
    with CollectiveTrace(control, before_launch=before_launch) as trace:
        operations = [lambda: dist.all_reduce(torch.ones(4), group=group), lambda: gather(group)]
        if group.rank() == flipped_rank:
            operations.reverse()
        for operation in operations:
            operation()
        _Meet.apply(weight, group).sum().backward()
    return trace.issued


class _Meet(torch.autograd.Function):
    """All-reduces in backward."""

    @staticmethod
    def forward(ctx, value, group):  # type: ignore[no-untyped-def]
        ctx.group = group
        return value.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def gather(group: dist.ProcessGroup) -> None:
    dist.all_gather_single(torch.empty(group.size()), torch.ones(1), group=group)


def test_equal_order_is_recorded_in_forward_and_backward(rank_pool: RankPool) -> None:
    traces = rank_pool.run(2, issue, None, True)
    assert traces[0] == traces[1]
    assert [name.split()[0].rstrip("_") for name in traces[0]] == ["allreduce", "_allgather_base", "allreduce"]


def test_a_flipped_order_raises_on_both_ranks_instead_of_hanging(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, issue, 1, True, timeout_s=20, return_exceptions=True)
    assert all(isinstance(error, RankDisagreementError) for error in found), found
    assert "rank 0 issued allreduce" in str(found[0])
    assert "rank 1 issued _allgather_base" in str(found[0])


def test_an_extra_collective_on_one_rank_is_found_at_the_end(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, one_more, timeout_s=20, return_exceptions=True)
    assert all(isinstance(error, RankDisagreementError) for error in found), found


def one_more(group: dist.ProcessGroup) -> None:
    control = dist.new_group(backend="gloo")
    alone = [dist.new_group([rank]) for rank in range(group.size())]
    with CollectiveTrace(control, before_launch=False):
        if group.rank() == 1:
            dist.all_reduce(torch.ones(2), group=alone[1])


DEGREES = (1, 2, 4)


def issue_nested(group: dist.ProcessGroup, flipped_rank: int | None, before_launch: bool) -> list[str]:
    """A collective of all ranks, and two of each pair; one rank may issue another one in its pair."""
    cpu = torch.device("cpu")
    nodes = node_groups(DEGREES, group, cpu, timeout_s=30)
    control = dist.new_group(backend="gloo")
    with CollectiveTrace(control, before_launch=before_launch, nodes=shadows(group)) as trace:
        dist.all_reduce(torch.ones(2), group=nodes.by_degree[4])
        pair = nodes.by_degree[2]
        if group.rank() < 2:  # the other pair has one collective fewer, which is no difference
            dist.all_reduce(torch.ones(3), group=pair)
        if group.rank() == flipped_rank and before_launch:
            dist.all_reduce(torch.ones(7), group=nodes.by_degree[4])  # before its pair's: both sides would wait
        dist.all_reduce(torch.ones(5), group=pair)
    return trace.issued


def shadows(group: dist.ProcessGroup) -> NodeGroups:
    return node_groups(DEGREES, group, torch.device("cpu"), timeout_s=3)


def test_groups_of_some_ranks_may_differ_from_one_another(rank_pool: RankPool) -> None:
    traces = rank_pool.run(4, issue_nested, None, True)
    assert len(traces[0]) == len(traces[1]) == 1 + len(traces[2])


def test_a_rank_that_skips_its_pair_raises_on_all_ranks_instead_of_hanging(rank_pool: RankPool) -> None:
    found = rank_pool.run(4, issue_nested, 3, True, timeout_s=40, return_exceptions=True)
    assert all(isinstance(error, RankDisagreementError) for error in found), found
    assert "rank 3 issued allreduce_ of 7 values" in str(found[0])


def test_another_collective_within_a_pair_is_named(rank_pool: RankPool) -> None:
    found = rank_pool.run(4, other_in_pair, timeout_s=40, return_exceptions=True)
    assert all(isinstance(error, RankDisagreementError) for error in found), found
    assert "in the group of ranks [2, 3], counted within it, collective 0" in str(found[0])


def other_in_pair(group: dist.ProcessGroup) -> None:
    nodes = node_groups(DEGREES, group, torch.device("cpu"), timeout_s=30)
    with CollectiveTrace(dist.new_group(backend="gloo"), nodes=shadows(group)):
        dist.all_reduce(torch.ones(4 if group.rank() == 3 else 3), group=nodes.by_degree[2])
