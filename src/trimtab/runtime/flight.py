"""An all-to-all that runs beside the computation, in forward and in backward.

``depart`` starts it, ``arrive`` awaits it; whatever is computed between the two overlaps. In backward, ``arrive``
starts the way back and ``depart`` awaits it. As autograd runs the youngest node first, what was computed between the
two in the forward is what runs between them in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Wait = Callable[[], Tensor]


class Lane:
    """Starts all-to-alls beside the computation: gloo's own threads on a CPU, one side stream on CUDA.

    One stream for all groups makes every rank's device run their collectives in the order they were issued, which the
    ranks of nested groups agree on; a stream for each group would not.
    """

    def __init__(self, device: torch.device, *, overlap: bool = True) -> None:
        """Use a lane on ``device``.

        Args:
            device: of the tensors.
            overlap: False awaits every exchange where it starts, to measure what overlap is worth.
        """
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._overlap = overlap

    def start(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup) -> Wait:
        """Start to exchange blocks of ``rows`` (first dimension); the result is what the returned function gives."""
        rows = rows.contiguous()
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        wait = (self._on_stream if self._stream else self._async)(received, rows, list(receive), list(send), group)
        if not self._overlap:
            wait()
            return lambda: received
        return wait

    def _async(
        self, received: Tensor, rows: Tensor, receive: list[int], send: list[int], group: dist.ProcessGroup
    ) -> Wait:
        work = dist.all_to_all_single(received, rows, receive, send, group=group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return received

        return wait

    def _on_stream(
        self, received: Tensor, rows: Tensor, receive: list[int], send: list[int], group: dist.ProcessGroup
    ) -> Wait:
        stream = self._stream
        assert stream is not None
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):
            dist.all_to_all_single(received, rows, receive, send, group=group)
        for tensor in (rows, received):  # their memory must not be reused while the lane still works on it
            tensor.record_stream(stream)
        done = stream.record_event()

        def wait() -> Tensor:
            torch.cuda.current_stream(received.device).wait_event(done)
            return received

        return wait


class Flight:
    """One exchange of one forward, and its way back."""

    def __init__(self, group: dist.ProcessGroup, send: Sequence[int], receive: Sequence[int], lane: Lane) -> None:
        """Describe it.

        Args:
            group: its ranks.
            send: rows for each rank.
            receive: rows from each rank.
            lane: where it runs.
        """
        self.send, self.receive = tuple(send), tuple(receive)
        self._group, self._lane = group, lane
        self._pending: Wait | None = None

    def launch(self, rows: Tensor, *, back: bool) -> Tensor:
        """Start it; returns a stand-in without storage, of the shape of what lies between ``depart`` and ``arrive``."""
        send, receive = (self.receive, self.send) if back else (self.send, self.receive)
        self._pending = self._lane.start(rows, send, receive, self._group)
        return rows.new_empty(()).expand(sum(self.receive), *rows.shape[1:])

    def land(self) -> Tensor:
        """Await it."""
        wait, self._pending = self._pending, None
        assert wait is not None, "an exchange is awaited once after each start"
        return wait()


def depart(rows: Tensor, flight: Flight) -> Tensor:
    """Start ``flight`` with ``rows`` [sum(send), ...]; pass the stand-in that comes back to ``arrive`` alone."""
    stand_in: Tensor = _Depart.apply(rows, flight)
    return stand_in


def arrive(stand_in: Tensor, flight: Flight) -> Tensor:
    """[sum(receive), ...]: what ``flight`` brought."""
    received: Tensor = _Arrive.apply(stand_in, flight)
    return received


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, flight: Flight) -> Tensor:
        ctx.flight = flight
        return flight.launch(rows, back=False)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.flight.land(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, flight: Flight) -> Tensor:
        ctx.flight = flight
        return flight.land()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.flight.launch(grad, back=True), None
