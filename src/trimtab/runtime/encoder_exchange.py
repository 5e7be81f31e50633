"""One balanced call of a vision encoder: pixels to the ranks that encode them, outputs back in the order they came.

Every rank calls `begin`, its encoder, and `finish`, also with no visual of its own: it then encodes a blank one, so
that all ranks run the same layers in forward and backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import MetadataError, RankDisagreementError, SettingsError
from trimtab.planning.encoder_balance import EncoderPlan, plan_encoder, route_pixels
from trimtab.runtime.balance_report import BalanceRecord, BalanceTotals, Logger, emit
from trimtab.runtime.balancer_settings import EncoderBalanceSettings
from trimtab.runtime.exchange import exchange_rows, link
from trimtab.runtime.settings_agreement import agree_on_settings
from trimtab.runtime.shared_error import raise_on_every_rank
from trimtab.runtime.step_metadata import all_gather_row

FrameCost = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Cost of one frame of each grid (int64 [V, 2], patches) in nanoseconds; only ratios matter."""


def patch_cost(width: int) -> FrameCost:
    """P (p + 6 w): attention within a frame of p patches, and the linear layers of an encoder of width w.

    Per layer and patch, attention takes 4 p w FLOPs, projections and a feed-forward of 4 w take 24 w^2.
    """

    def cost(grids: NDArray[np.int64]) -> NDArray[np.int64]:
        patches = grids[:, 0] * grids[:, 1]
        return np.asarray(patches * (patches + 6 * width), dtype=np.int64)

    return cost


@dataclass(frozen=True, eq=False, kw_only=True)
class _Call:
    """What `finish` needs of a call."""

    plan: EncoderPlan
    grids: NDArray[np.int64]
    owner: NDArray[np.int64]
    moves: bool
    own_tokens: int


class EncoderExchange:
    """Balances calls of one encoder over a group."""

    def __init__(
        self,
        *,
        merge_size: int,
        frame_cost: FrameCost,
        group: dist.ProcessGroup,
        settings: EncoderBalanceSettings | None = None,
        logger: Logger | None = None,
    ) -> None:
        """Balance an encoder.

        Args:
            merge_size: the encoder gives one row for every merge_size squared patches.
            frame_cost: what a frame costs; the same on every rank.
            group: the ranks that share work; its tensors move on the encoder's device. Best a group used for nothing
                else, since its collectives run in the middle of backward.
            settings: of the balance.
            logger: takes ``balance/encoder/...`` names and values, on the first rank.
        """
        self.settings = settings or EncoderBalanceSettings()
        self.totals = BalanceTotals(what="encoder")
        self._merge = merge_size
        self._frame_cost = frame_cost
        self._group = group
        self._logger = logger
        self._calls = 0
        self._call: _Call | None = None
        self._unused: list[Tensor] = []

    def agree(self) -> None:
        """Check that every rank balances alike, "off" included; collective.

        Raises:
            RankDisagreementError: on every rank: names the settings that differ.
        """
        shared = {"merge_size": self._merge, **asdict(self.settings)}
        agree_on_settings(self._group, "the encoder balances' settings", shared)

    def refuse(self, error: Exception) -> NoReturn:
        """Tell all ranks that this one's call cannot begin; collective, in place of ``begin``.

        Raises:
            TrimtabError: always, on every rank.
        """
        all_gather_row(torch.tensor([1, self._calls, 0], dtype=torch.int64), self._group)
        raise_on_every_rank(self._group, f"encoder call {self._calls}", error)

    def begin(
        self, pixel_values: Tensor, grid_thw: Tensor, is_video: Sequence[bool] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Plan a call and move pixels; collective.

        Args:
            pixel_values: [P, D], patches of this rank's visuals; [0, D] without any.
            grid_thw: int64 [v, 3].
            is_video: of each visual; None: those of several frames.

        Returns:
            Patches and grids this rank encodes.

        Raises:
            MetadataError: on every rank, where one rank's grids do not match its pixels.
            RankDisagreementError: ranks differ in settings or plans.
        """
        began = time.perf_counter()
        grids, owner, videos = self._gather(pixel_values, grid_thw, is_video)
        error: Exception | None = None
        try:
            best, plan, reason = self._planned(grids, owner, videos)
        except Exception as failure:  # told to all ranks below
            error = failure
        self._compare(None if error else plan, error)
        moves = not reason
        planned = time.perf_counter()
        own = int((grids[owner == self._group.rank()].prod(axis=1) // self._merge**2).sum())
        self._call = _Call(plan=plan, grids=grids, owner=owner, moves=moves, own_tokens=own)
        pixels, unit_grids = self._units(pixel_values, grid_thw)
        self._record(best, reason, began, planned, pixel_values)
        return pixels, unit_grids

    def finish(self, output: Any) -> Any:
        """Bring outputs back; collective where pixels moved.

        Args:
            output: of the encoder: a tensor with one row for each merged token, a list of such, or a Transformers
                output with ``pooler_output`` (and ``deepstack_features``), whose ``last_hidden_state`` stays away.
        """
        assert self._call is not None
        call, self._call = self._call, None
        self._calls += 1
        rows = _row_tensors(output)
        widths = [tensor.shape[-1] for tensor in rows]
        joined = torch.cat(rows, dim=-1)
        if call.moves:
            there = route_pixels(
                call.plan.units, call.grids, call.owner, self._group.size(), patches_per_row=self._merge**2
            )
            joined = exchange_rows(joined, there.inverse().local(self._group.rank()), self._group)
        else:
            joined = joined[: call.own_tokens]
        if joined.requires_grad:
            self._unused.append(joined)
        return _with_rows(output, list(joined.split(widths, dim=-1)))

    def cancel(self) -> None:
        """End a call whose encoder does not run."""
        self._call = None
        self._calls += 1

    def link(self, loss: Tensor) -> Tensor:
        """``loss`` unchanged, with every output since the last call part of its graph.

        Needed where a rank's loss may not use its outputs: the others' gradients pass through this rank.
        """
        unused, self._unused = self._unused, []
        return link(loss, *unused) if unused and loss.requires_grad else loss

    def take_unused(self) -> list[Tensor]:
        """Outputs not linked yet, for a caller that links them itself."""
        unused, self._unused = self._unused, []
        return unused

    def _gather(
        self, pixels: Tensor, grid_thw: Tensor, is_video: Sequence[bool] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        grids = grid_thw.detach().cpu().numpy().astype(np.int64).reshape(-1, 3)
        error = self._mismatch(pixels, grids)
        head = torch.tensor([int(error is not None), self._calls, len(grids)], dtype=torch.int64)
        heads = all_gather_row(head, self._group)
        if heads[:, 0].any():
            raise_on_every_rank(self._group, f"encoder call {self._calls}", error)
        if len(set(heads[:, 1].tolist())) > 1:
            raise RankDisagreementError(
                f"ranks are at encoder calls {heads[:, 1].tolist()}; call the encoder on every rank in every "
                "micro-batch"
            )
        videos = grids[:, 0] > 1 if is_video is None else np.array(is_video, dtype=np.bool_)
        table = np.zeros((int(heads[:, 2].max()), 4), dtype=np.int64)
        table[: len(grids), :3], table[: len(grids), 3] = grids, videos
        rows = all_gather_row(torch.from_numpy(table.reshape(-1)), self._group).reshape(self._group.size(), -1, 4)
        held = np.concatenate([row[:count] for row, count in zip(rows, heads[:, 2], strict=True)])
        return held[:, :3], np.repeat(np.arange(len(heads)), heads[:, 2]), held[:, 3] != 0

    def _mismatch(self, pixels: Tensor, grids: NDArray[np.int64]) -> Exception | None:
        if (grids < 1).any() or (grids[:, 1:] % self._merge).any():
            return MetadataError(
                f"grids must be positive and a multiple of merge size {self._merge}, found {grids.tolist()[:4]}…"
            )
        if int(grids.prod(axis=1).sum()) != len(pixels):
            return MetadataError(f"{len(pixels)} patches for grids of {int(grids.prod(axis=1).sum())}")
        return None

    def _why_not(self, plan: EncoderPlan) -> str:
        if self.settings.mode != "on" or self._calls < self.settings.warmup_steps:
            return "only observed"
        before, after = int(plan.current_ns.max()), int(plan.load_ns.max())
        if after >= before:
            return "nothing better found"
        gain = 1 - after / before
        return (
            "" if gain >= self.settings.threshold else f"gain {gain:.1%} below threshold {self.settings.threshold:.1%}"
        )

    def _planned(
        self, grids: NDArray[np.int64], owner: NDArray[np.int64], videos: NDArray[np.bool_]
    ) -> tuple[EncoderPlan, EncoderPlan, str]:
        """The best plan found, the one that runs, and why that is not the best."""
        frame_ns = np.asarray(self._frame_cost(grids[:, 1:]))
        if frame_ns.shape != (len(grids),) or frame_ns.dtype != np.int64 or (frame_ns < 0).any():
            raise SettingsError(
                f"frame_cost gave {frame_ns.dtype} of shape {list(frame_ns.shape)}, least {frame_ns.min(initial=0)}; "
                f"give whole nanoseconds of at least 0 as int64, one for each of {len(grids)} visuals"
            )
        best = plan_encoder(grids, videos, owner, frame_ns, self._group.size(), self.settings.strategy)
        reason = self._why_not(best)
        if not reason:
            return best, best, ""
        return best, plan_encoder(grids, videos, owner, frame_ns, self._group.size(), "as-is"), reason

    def _compare(self, plan: EncoderPlan | None, error: Exception | None) -> None:
        digest = 0 if plan is None else int(plan.digest(), 16) - (1 << 63)
        table = all_gather_row(torch.tensor([digest, int(error is not None)]), self._group)
        if table[:, 1].any():
            raise_on_every_rank(self._group, f"encoder call {self._calls}", error)
        if (table != table[0]).any():
            other = int(np.flatnonzero((table != table[0]).any(axis=1))[0])
            raise RankDisagreementError(
                f"encoder call {self._calls}: rank 0 and rank {other} planned differently; give every rank the same "
                "frame cost"
            )

    def _units(self, pixels: Tensor, grid_thw: Tensor) -> tuple[Tensor, Tensor]:
        """What this rank encodes: its units, or one blank visual."""
        assert self._call is not None
        call, me = self._call, self._group.rank()
        units = call.plan.units
        mine = np.flatnonzero(units.rank == me)
        if call.moves:
            route = route_pixels(units, call.grids, call.owner, self._group.size())
            pixels = exchange_rows(pixels, route.local(me), self._group)
        if not len(mine):
            blank = torch.tensor([[1, self._merge, self._merge]], dtype=grid_thw.dtype, device=grid_thw.device)
            return pixels.new_zeros(self._merge**2, pixels.shape[-1]), blank
        grids = call.grids[units.visual[mine]].copy()
        grids[:, 0] = (units.frame_stop - units.frame_start)[mine]
        return pixels, torch.from_numpy(grids).to(grid_thw)

    def _record(self, best: EncoderPlan, reason: str, began: float, planned: float, pixels: Tensor) -> None:
        assert self._call is not None
        call = self._call
        plan = call.plan
        rows = route_pixels(plan.units, call.grids, call.owner, self._group.size())
        mean = float(plan.current_ns.mean()) or 1.0
        before, after = float(plan.current_ns.max()), float(plan.load_ns.max())
        reached = float(best.load_ns.max()) if self.settings.mode == "observe" else after
        record = BalanceRecord(
            what="encoder",
            step=self._calls,
            mode=self.settings.mode,
            applied=int(call.moves),
            considered=1,
            reason=reason,
            samples=len(call.grids),
            moved_samples=len(set(plan.units.visual[plan.units.rank != call.owner[plan.units.visual]].tolist())),
            moved_bytes=rows.moved_rows * int(pixels.shape[-1]) * pixels.element_size(),
            step_ratio_before=before / mean,
            step_ratio=after / mean,
            best_ratio=reached / mean,
            bound_ratio=reached / plan.bound_ns if plan.bound_ns else 1.0,
            gain=1 - reached / before if before else 0.0,
            planning_ms=(planned - began) * 1e3,
            exchange_ms=(time.perf_counter() - planned) * 1e3,
            total_ms=(time.perf_counter() - began) * 1e3,
        )
        self.totals.add(record)
        emit(record, first=self._group.rank() == 0, verbose=self.settings.verbose, logger=self._logger)


def _row_tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [tensor for item in output for tensor in _row_tensors(item)]
    pooled = getattr(output, "pooler_output", None)
    if pooled is None:
        raise MetadataError(
            f"the encoder returned {type(output).__name__}; it must be a tensor with a row for each merged token, a "
            "list of them, or an output with pooler_output"
        )
    return [pooled, *(getattr(output, "deepstack_features", None) or [])]


def _with_rows(output: Any, rows: list[Tensor]) -> Any:
    if isinstance(output, Tensor):
        return rows.pop(0)
    if isinstance(output, list | tuple):
        return type(output)(_with_rows(item, rows) for item in output)
    output.last_hidden_state = None  # its rows stay where they were computed
    output.pooler_output = rows.pop(0)
    if getattr(output, "deepstack_features", None):
        output.deepstack_features = rows
    return output
