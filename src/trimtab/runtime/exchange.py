"""Moves rows between ranks along a route, with gradients that travel back along its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.schema.routes import LocalRoute

Mark = Callable[[str], None]


def exchange_rows(rows: Tensor, route: LocalRoute, group: dist.ProcessGroup, mark: Mark | None = None) -> Tensor:
    """Send rows to the ranks that need them; a collective of ``group``, with zero rows too.

    Backward sends gradients the same way back and sums them over the copies of a row, so every rank of the group must
    run backward through the result (see ``link``).

    Args:
        rows: [source_rows, D] on this rank.
        route: this rank's part of the route.
        group: the ranks that take part.
        mark: told "exchange" when gradients start to travel back and "vision" once they have arrived.

    Returns:
        [route.result_rows, D]; rows nobody sends are zero.
    """
    result: Tensor = _Exchange.apply(rows, route, group, mark)
    return result


def link(output: Tensor, *unused: Tensor) -> Tensor:
    """``output`` unchanged, with ``unused`` made part of its graph at zero gradient.

    Keeps collectives in backward symmetric where a rank's loss does not use what it received.
    """
    result: Tensor = _Link.apply(output, *unused)
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: LocalRoute, group: dist.ProcessGroup, mark: Mark | None) -> Tensor:
        ctx.route, ctx.group, ctx.mark, ctx.source_rows = route, group, mark, len(rows)
        send = rows[_index(route.send_rows, rows)]
        received = _all_to_all(send, route.send_splits, route.receive_splits, group)
        result = rows.new_zeros(route.result_rows, *rows.shape[1:])
        result[_index(route.receive_rows, rows)] = received
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        route: LocalRoute = ctx.route
        if ctx.mark:
            ctx.mark("exchange")
        back = grad[_index(route.receive_rows, grad)]
        returned = _all_to_all(back, route.receive_splits, route.send_splits, ctx.group)
        grad_rows = grad.new_zeros(ctx.source_rows, *grad.shape[1:])
        grad_rows.index_add_(0, _index(route.send_rows, grad), returned)
        if ctx.mark:
            ctx.mark("vision")
        return grad_rows, None, None, None


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, *unused: Tensor) -> Tensor:
        ctx.save_for_backward(*unused)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return (grad, *(torch.zeros_like(tensor) for tensor in ctx.saved_tensors))


def _all_to_all(
    send: Tensor, send_splits: tuple[int, ...], receive_splits: tuple[int, ...], group: dist.ProcessGroup
) -> Tensor:
    received = send.new_empty(sum(receive_splits), *send.shape[1:])
    dist.all_to_all_single(received, send.contiguous(), list(receive_splits), list(send_splits), group=group)
    return received


def _index(rows: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(rows, dtype=torch.int64, device=like.device)
