"""torch's pipeline stage, with receive buffers for the micro-batches in flight only, and a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAction:
    """One forward or backward of one micro-batch on one stage, transfers apart.

    Attributes:
        stage, micro_batch: of the plan, of the step.
        backward: recomputation included.
        compute_ns: processor time of the thread while torch computes on one thread of a CPU, else wall time.
    """

    stage: int
    micro_batch: int
    backward: bool
    compute_ns: int


class LeanStage(PipelineStage):
    """A stage that receives into memory of its own for each micro-batch, and lets go of it with the activations.

    torch's own allocates buffers for all micro-batches of a step, in both directions, and keeps them between steps.

    Attributes:
        actions: where a list, what ran since it was put there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actions: list[TimedAction] | None = None
        self._emptied = False

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        """See ``PipelineStage``."""
        self._empty_all()
        self._fill(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
        """See ``PipelineStage``."""
        self._fill(self.grad_recv_info.get(bwd_chunk_id, ()))
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """See ``PipelineStage``."""
        self._empty_all()
        super().set_local_fwd_input(prev_stage_outputs, mb_index)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """See ``PipelineStage``."""
        self._empty_all()
        with self._timed(fwd_chunk_id, backward=False):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _empty(self.args_recv_info[fwd_chunk_id])
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """See ``PipelineStage``."""
        with self._timed(bwd_chunk_id, backward=True):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        _empty(self.grad_recv_info.get(bwd_chunk_id, ()))

    @contextmanager
    def _timed(self, micro_batch: int, *, backward: bool) -> Iterator[None]:
        if self.actions is None:
            yield
            return
        on_one_thread = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = time.thread_time_ns if on_one_thread else time.perf_counter_ns
        self._wait()
        began = clock()
        yield
        self._wait()
        taken = clock() - began
        self.actions.append(
            TimedAction(stage=self.stage_index, micro_batch=micro_batch, backward=backward, compute_ns=taken)
        )

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _empty_all(self) -> None:
        """Let go of what torch allocated for the whole step."""
        if not self._emptied:
            for infos in (*self.args_recv_info.values(), *self.grad_recv_info.values()):
                _empty(infos)
            self._emptied = True

    def _fill(self, infos: Sequence[Any]) -> None:
        for info in infos:
            if not info.is_root_arg and info.tensor_meta is not None and info.buffer is None:
                meta = info.tensor_meta
                info.buffer = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)


def _empty(infos: Sequence[Any]) -> None:
    for info in infos:
        info.buffer = None
