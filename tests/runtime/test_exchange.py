"""Contract 6: rows arrive bit for bit where the route says, and gradients come back summed over copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.distributed as dist

from trimtab.runtime.exchange import exchange_rows, link
from trimtab.schema.routes import RoutePlan
from trimtab.testing import run_threads

Block = tuple[int, int, int, int, int]  # rows, source rank, source start, destination rank, destination start


def route_of(ranks: int, blocks: Sequence[Block], source_rows: Sequence[int], result_rows: Sequence[int]) -> RoutePlan:
    columns = np.array(blocks, dtype=np.int64).reshape(-1, 5).T
    return RoutePlan(
        ranks=ranks,
        rows=columns[0],
        source_rank=columns[1],
        source_start=columns[2],
        destination_rank=columns[3],
        destination_start=columns[4],
        source_rows=np.array(source_rows),
        destination_rows=np.array(result_rows),
    )


INTERLEAVED = route_of(3, [(1, 0, 0, 2, 1), (2, 0, 1, 1, 0), (1, 1, 0, 2, 0), (1, 1, 1, 2, 2)], [3, 2, 0], [0, 2, 3])
COPIED = route_of(3, [(2, 0, 0, 0, 0), (2, 0, 0, 1, 1), (1, 1, 0, 1, 0), (2, 0, 0, 2, 0)], [2, 1, 0], [2, 3, 2])
NOTHING = route_of(3, [], [2, 0, 1], [0, 0, 0])
CASES = {"interleaved": INTERLEAVED, "copied": COPIED, "nothing moves": NOTHING}


def source(rank: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64)


def there_and_back(route: RoutePlan, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    rank = group.rank()
    rows = source(rank, int(route.source_rows[rank])).requires_grad_()
    result = exchange_rows(rows, route.local(rank), group)
    weight = torch.arange(1.0, len(result) + 1, dtype=torch.float64)[:, None] * (rank + 1)
    (result * weight).sum().backward()
    assert rows.grad is not None
    return result.detach(), rows.grad


@pytest.mark.parametrize("route", CASES.values(), ids=CASES.keys())
def test_rows_arrive_and_gradients_return(route: RoutePlan) -> None:
    outcomes = run_threads(3, lambda group: there_and_back(route, group))
    expected_grads = [torch.zeros(int(rows), 4, dtype=torch.float64) for rows in route.source_rows]
    for b in range(len(route.rows)):
        rows, start = int(route.rows[b]), int(route.source_start[b])
        origin, target = int(route.source_rank[b]), int(route.destination_rank[b])
        at = int(route.destination_start[b])
        sent = source(origin, int(route.source_rows[origin]))[start : start + rows]
        assert torch.equal(outcomes[target][0][at : at + rows], sent)
        weight = torch.arange(at + 1.0, at + rows + 1, dtype=torch.float64)[:, None] * (target + 1)
        expected_grads[origin][start : start + rows] += weight
    for (result, grad), rows, expected in zip(outcomes, route.destination_rows, expected_grads, strict=True):
        assert len(result) == rows
        assert torch.equal(grad, expected)


def test_the_inverse_of_a_route_without_copies_restores_the_rows() -> None:
    def round_trip(group: dist.ProcessGroup) -> bool:
        rank = group.rank()
        rows = source(rank, int(INTERLEAVED.source_rows[rank]))
        there = exchange_rows(rows, INTERLEAVED.local(rank), group)
        return torch.equal(exchange_rows(there, INTERLEAVED.inverse().local(rank), group), rows)

    assert run_threads(3, round_trip) == [True, True, True]


def test_a_rank_whose_loss_ignores_what_it_received_still_sends_gradients_back() -> None:
    route = route_of(2, [(2, 0, 0, 1, 0)], [2, 0], [0, 2])

    def ignore(group: dist.ProcessGroup) -> torch.Tensor:
        rows = source(group.rank(), int(route.source_rows[group.rank()])).requires_grad_()
        received = exchange_rows(rows, route.local(group.rank()), group)
        unrelated = torch.ones(1, dtype=torch.float64, requires_grad=True)
        link(unrelated * 3, received).sum().backward()
        assert rows.grad is not None
        assert unrelated.grad is not None
        assert float(unrelated.grad) == 3.0
        return rows.grad

    sent, received = run_threads(2, ignore)
    assert torch.equal(sent, torch.zeros(2, 4, dtype=torch.float64))
    assert len(received) == 0


def test_linked_values_that_are_not_finite_leave_no_trace() -> None:
    output = torch.ones(2, requires_grad=True)
    poisoned = torch.tensor([float("nan")], requires_grad=True)
    linked = link(output * 2, poisoned)
    linked.sum().backward()
    assert linked.tolist() == [2.0, 2.0]
    assert poisoned.grad is not None
    assert poisoned.grad.tolist() == [0.0]


def test_phases_are_marked_around_the_way_back() -> None:
    def marked(group: dist.ProcessGroup) -> list[str]:
        marks: list[str] = []
        rank = group.rank()
        rows = source(rank, int(INTERLEAVED.source_rows[rank])).requires_grad_()
        exchange_rows(rows, INTERLEAVED.local(rank), group, marks.append).sum().backward()
        return marks

    assert run_threads(3, marked) == [["exchange", "vision"]] * 3
