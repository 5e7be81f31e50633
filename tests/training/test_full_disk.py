"""A checkpoint that the disk does not take."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.testing import RankPool
from trimtab.training import checkpoint
from trimtab.training.optimizer import make_optimizer
from trimtab.training.settings import OptimizerSettings

OF_TORCH = "[enforce fail at inline_container.cc:672] . "
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(f"{OF_TORCH}unexpected pos 704 vs 598"), "the disk took only part of it"),
        (RuntimeError(f"{OF_TORCH}PytorchStreamWriter failed writing file data/3"), "the disk took only part of it"),
        (FULL, "No space left on device"),
    ],
)
def test_room_and_need_are_told_and_the_older_checkpoint_stays(
    rank_pool: RankPool, tmp_path: Path, error: Exception, said: str
) -> None:
    (found,) = rank_pool.run(1, _save_twice, tmp_path, error, return_exceptions=True)
    assert isinstance(found, CheckpointError)
    told = str(found)
    assert told.startswith(f"rank 3 could not write checkpoint {tmp_path / 'step-000002'}: {said}; {tmp_path} has ")
    assert "MiB free, the checkpoint takes more than 3.0 MiB; free space or choose another runs folder" in told
    assert told.endswith("; step-000001 is still there to resume from")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_another_failure_keeps_its_own_words(rank_pool: RankPool, tmp_path: Path) -> None:
    (found,) = rank_pool.run(1, _save_twice, tmp_path, PermissionError(13, "Permission denied"), return_exceptions=True)
    assert "PermissionError: [Errno 13] Permission denied; free space or choose" in str(found)


def _save_twice(group: dist.ProcessGroup, folder: Path, error: Exception) -> None:
    model = nn.Linear(512, 512, bias=False)
    optimizer = make_optimizer(model, OptimizerSettings())
    checkpoint.save(folder, model, optimizer, checkpoint.Progress(next_step=1, loader={}), group)
    failure = dcp.api.CheckpointException("save", {3: (error, None)})  # type: ignore[dict-item]
    with mock.patch("torch.distributed.checkpoint.save", side_effect=failure):
        checkpoint.save(folder, model, optimizer, checkpoint.Progress(next_step=2, loader={}), group)
