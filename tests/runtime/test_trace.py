"""The debug mode finds a rank that issues other collectives, before ranks wait for each other for ever."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trimtab.errors import RankDisagreementError
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
