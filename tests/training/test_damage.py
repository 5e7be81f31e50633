"""A damaged checkpoint is named with its file, and so is what is left to resume from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.testing import RankPool
from trimtab.training import checkpoint
from trimtab.training.optimizer import make_optimizer
from trimtab.training.settings import OptimizerSettings


def save(group: dist.ProcessGroup, folder: Path, step: int) -> None:
    model = nn.Linear(64, 64)
    optimizer = make_optimizer(model, OptimizerSettings())
    checkpoint.save(folder, model, optimizer, checkpoint.Progress(next_step=step, loader={}), group)


def load(group: dist.ProcessGroup, path: Path) -> int:
    model = nn.Linear(64, 64)
    return checkpoint.load(path, model, make_optimizer(model, OptimizerSettings()), group, dataset="").next_step


@pytest.fixture(scope="module")
def whole(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    rank_pool.run(2, save, folder, 6)
    return folder / "step-000006"


def flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    start = int(share * len(content))
    for place in range(start, start + 8):
        content[place] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("__0_0.distcp", lambda path: flip(path, 0), "__0_0.distcp is damaged"),
        ("__0_0.distcp", lambda path: flip(path, 0.5), "__0_0.distcp is damaged"),  # torch would not notice
        ("__0_0.distcp", cut, "__0_0.distcp is damaged"),
        ("__0_0.distcp", Path.unlink, "__0_0.distcp is missing"),
        (".metadata", cut, ".metadata is damaged"),
        (".metadata", Path.unlink, ".metadata is missing"),
        ("progress.json", cut, "progress.json is damaged"),
    ],
)
def test_the_damaged_file_is_named_in_one_line(
    rank_pool: RankPool, whole: Path, tmp_path: Path, name: str, change: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / whole.name
    shutil.copytree(whole, path)
    assert rank_pool.run(2, load, path) == [6, 6]
    change(path / name)
    told = f"cannot resume from {path}: {said}; there is no other checkpoint: begin anew without --resume"
    errors = rank_pool.run(2, load, path, return_exceptions=True)
    assert [(type(error), str(error)) for error in errors] == [(CheckpointError, told)] * 2


def test_what_remains_to_resume_from_is_told(rank_pool: RankPool, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "step-000006"
    shutil.copytree(whole, path)
    flip(next(path.glob("*.distcp")), 0)
    (tmp_path / "previous").mkdir()
    (tmp_path / "previous" / "progress.json").write_text(json.dumps({"next_step": 4}))
    (error,) = rank_pool.run(1, load, path, return_exceptions=True)
    assert str(error).endswith(f"remove that folder and rename {tmp_path / 'previous'} to step-000004")
    shutil.copytree(whole, tmp_path / "step-000002")
    (error,) = rank_pool.run(1, load, path, return_exceptions=True)
    assert str(error).endswith("; remove that folder to resume from step-000002")
