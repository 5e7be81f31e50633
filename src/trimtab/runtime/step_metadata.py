"""What every rank knows of a step before anything moves: two collectives, whatever the ranks hold.

The first has one size on every rank: status, step, counts and the form of the batches. The second carries one row for
each sample and visual, padded to the longest rank's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trimtab.errors import MetadataError, RankDisagreementError
from trimtab.runtime.batch_form import encode_form, merge_forms
from trimtab.runtime.host_batch import HostLayout, HostSample, MicroBatch
from trimtab.runtime.repack import BatchForm
from trimtab.runtime.shared_error import raise_on_every_rank
from trimtab.schema.metadata import BatchMetadata

_HEAD = 6
_SAMPLE_COLUMNS, _VISUAL_COLUMNS = 5, 6


@dataclass(frozen=True, eq=False, kw_only=True)
class StepMetadata:
    """All samples of a step, rank by rank and in each rank's own order (N samples, V visuals).

    Attributes:
        rank, micro_batch: int64 [N], where each sample lies.
        tokens, loss_tokens: int64 [N].
        loss_weight: float64 [N].
        visual_offsets: int64 [N + 1].
        visuals: int64 [V, 6], see ``host_batch.VISUAL_COLUMNS``.
        held: micro-batches each rank holds; 0 where its data has ended.
        form: of the batches.
        merge_size: of the family.
    """

    rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    tokens: NDArray[np.int64]
    loss_tokens: NDArray[np.int64]
    loss_weight: NDArray[np.float64]
    visual_offsets: NDArray[np.int64]
    visuals: NDArray[np.int64]
    held: tuple[int, ...]
    form: BatchForm
    merge_size: int

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def micro_batches(self) -> int:
        """M, the most any rank holds."""
        return max(self.held)

    @property
    def sample_of_visual(self) -> NDArray[np.int64]:
        """int64 [V]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.visual_offsets))

    def batch(self, rows: NDArray[np.int64], layout: HostLayout) -> BatchMetadata:
        """The planner's view of some samples.

        Its text tokens are what remains of the real length, which is what costs: families that pool or trim visuals
        have other placeholder counts than the grid implies.
        """
        counts = np.diff(self.visual_offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        visuals = self.visuals[np.isin(self.sample_of_visual, rows)]
        implied = np.zeros(len(rows), dtype=np.int64)
        owner = np.repeat(np.arange(len(rows)), counts)
        np.add.at(implied, owner, visuals[:, 1:4].prod(axis=1) // self.merge_size**2)
        return BatchMetadata(
            sample_ids=tuple(f"{row} (on rank {self.rank[row]})" for row in rows.tolist()),
            text_tokens=self.tokens[rows] - implied,
            loss_tokens=self.loss_tokens[rows],
            loss_weight=self.loss_weight[rows],
            visual_offsets=offsets,
            grid_thw=visuals[:, 1:4],
            is_video=np.array([layout.streams[s].kind == "video" for s in visuals[:, 0].tolist()], dtype=np.bool_),
            visual_keys=np.arange(len(visuals), dtype=np.int64),
            merge_size=self.merge_size,
        )


def gather_metadata(
    micro_batches: Sequence[MicroBatch],
    layout: HostLayout,
    *,
    group: dist.ProcessGroup,
    step: int,
    stream: int,
    multiple: int,
    error: Exception | None,
) -> StepMetadata | None:
    """Tell all ranks what this one holds; two collectives of ``group``.

    Args:
        micro_batches: of this rank; fewer than others' or none where its data has ended.
        layout: of the model.
        group: the data-parallel ranks.
        step: counted by this rank.
        stream: digest of the balancer's name, so that two loaders that share a group are told apart.
        multiple: lengths are padded to a multiple of it.
        error: what went wrong on this rank, or None.

    Returns:
        None where no rank holds a micro-batch.

    Raises:
        TrimtabError: a rank failed: its error, on every rank.
        RankDisagreementError: ranks are at different steps, or their batches look different.
    """
    samples = [(index, sample) for index, each in enumerate(micro_batches) for sample in each.samples]
    visuals = sum(len(sample.visuals) for _, sample in samples)
    head = [int(error is not None), step, stream, len(samples), visuals, len(micro_batches)]
    form_row, error = _encoded(micro_batches, layout, error)
    head[0] = int(error is not None)
    mine = torch.tensor(head + form_row, dtype=torch.int64)
    heads = all_gather_row(mine, group)
    if (heads[:, 0] != 0).any():
        raise_on_every_rank(group, f"balance step {step}", error)
    _check_pairing(heads[:, 1:3], step)
    if not heads[:, 5].any():
        return None
    most_samples, most_visuals = int(heads[:, 3].max()), int(heads[:, 4].max())
    rows = _rows(samples, most_samples, most_visuals)
    gathered = all_gather_row(torch.from_numpy(rows), group)
    form = merge_forms(heads[:, _HEAD:], layout, multiple)
    table = _concatenate(gathered, heads[:, 3], heads[:, 4], most_samples)
    return StepMetadata(
        **table,
        held=tuple(heads[:, 5].tolist()),
        form=form,
        merge_size=layout.merge_size,
    )


def _encoded(
    micro_batches: Sequence[MicroBatch], layout: HostLayout, error: Exception | None
) -> tuple[list[int], Exception | None]:
    """The rank's form, or that of no batch and why."""
    try:
        return encode_form(micro_batches, layout), error
    except MetadataError as malformed:
        return encode_form([], layout), error or malformed


def all_gather_row(mine: torch.Tensor, group: dist.ProcessGroup) -> NDArray[np.int64]:
    """int64 [R, ...]: every rank's row."""
    device = wire_device(group)
    gathered = torch.empty(group.size() * len(mine), dtype=torch.int64, device=device)
    dist.all_gather_single(gathered, mine.to(device), group=group)
    return gathered.view(group.size(), -1).cpu().numpy()


def wire_device(group: dist.ProcessGroup) -> torch.device:
    """Where tensors must lie for collectives of ``group``: the CPU where its backends reach it."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds or not kinds else torch.device(sorted(kinds)[0])


def _check_pairing(heads: NDArray[np.int64], step: int) -> None:
    for rank, (other_step, other_stream) in enumerate(heads.tolist()):
        if other_stream != int(heads[0, 1]):
            raise RankDisagreementError(
                f"balance step {step}: rank {rank} balances another loader than rank 0; give balancers that run at the "
                "same time groups and names of their own"
            )
        if other_step != int(heads[0, 0]):
            raise RankDisagreementError(
                f"rank 0 is at balance step {int(heads[0, 0])}, rank {rank} at {other_step}; resume all ranks from one "
                "checkpoint"
            )


def _rows(samples: Sequence[tuple[int, HostSample]], most_samples: int, most_visuals: int) -> NDArray[np.int64]:
    rows = np.zeros(most_samples * _SAMPLE_COLUMNS + most_visuals * _VISUAL_COLUMNS, dtype=np.int64)
    if samples:
        weights = np.array([sample.loss_weight for _, sample in samples], dtype=np.float64).view(np.int64)
        columns = [(index, s.tokens, s.loss_tokens, 0, len(s.visuals)) for index, s in samples]
        table = np.array(columns, dtype=np.int64)
        table[:, 3] = weights
        rows[: table.size] = table.reshape(-1)
        visuals = np.concatenate([sample.visuals for _, sample in samples])
        start = most_samples * _SAMPLE_COLUMNS
        rows[start : start + visuals.size] = visuals.reshape(-1)
    return rows


def _concatenate(
    gathered: NDArray[np.int64], samples: NDArray[np.int64], visuals: NDArray[np.int64], most_samples: int
) -> dict[str, Any]:
    split = most_samples * _SAMPLE_COLUMNS
    table = np.concatenate(
        [row[: n * _SAMPLE_COLUMNS].reshape(-1, _SAMPLE_COLUMNS) for row, n in zip(gathered, samples, strict=True)]
    )
    units = [
        row[split : split + n * _VISUAL_COLUMNS].reshape(-1, _VISUAL_COLUMNS)
        for row, n in zip(gathered, visuals, strict=True)
    ]
    return {
        "rank": np.repeat(np.arange(len(samples), dtype=np.int64), samples),
        "micro_batch": table[:, 0].copy(),
        "tokens": table[:, 1].copy(),
        "loss_tokens": table[:, 2].copy(),
        "loss_weight": np.ascontiguousarray(table[:, 3]).view(np.float64),
        "visual_offsets": np.concatenate([[0], np.cumsum(table[:, 4])]).astype(np.int64),
        "visuals": np.concatenate(units),
    }
