"""A checkpoint is there at every moment, also while the same step is written once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from tests.training.grpo_run import grpo_settings
from tests.training.grpo_run import train_on_rank as train_grpo_on_rank
from tests.training.sft_run import settings_for
from tests.training.small_run import train_on_rank, write_run
from torch import nn

from trimtab.testing import RankPool
from trimtab.training import checkpoint
from trimtab.training.checkpoint_names import latest, steps_of
from trimtab.training.optimizer import make_optimizer
from trimtab.training.settings import OptimizerSettings


def latest_at_every_moment(group: dist.ProcessGroup, folder: Path) -> list[str]:
    """Save step 2 twice; the newest checkpoint before each change of a name while that goes on, and at its end."""
    model = nn.Linear(8, 8)
    optimizer = make_optimizer(model, OptimizerSettings())
    found: list[str] = []

    def look() -> None:
        path = latest(folder)
        found.append("none" if path is None else path.name)

    def looking(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            look()
            return real(*args, **named)

        return call

    def save(step: int) -> None:
        checkpoint.save(folder, model, optimizer, checkpoint.Progress(next_step=step, loader={}), group)

    save(2)
    (folder / "step-000001-keep").mkdir()  # somebody's
    with (
        mock.patch.object(Path, "rename", looking(Path.rename)),
        mock.patch("shutil.rmtree", looking(checkpoint.shutil.rmtree)),
    ):
        save(2)
    look()
    return found


def test_one_checkpoint_is_there_at_every_moment(rank_pool: RankPool, tmp_path: Path) -> None:
    (found,) = rank_pool.run(1, latest_at_every_moment, tmp_path)
    assert len(found) >= 4
    assert found[0] == found[-1] == "step-000002"
    assert set(found) == {"step-000002", "step-000002.replaced"}
    assert steps_of(tmp_path / "step-000002.replaced") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"step-000002", "step-000001-keep"}


def counted(group: dist.ProcessGroup, settings: Any) -> int:
    """Checkpoints a run writes."""
    train = train_grpo_on_rank if settings.name == "grpo" else train_on_rank
    with mock.patch.object(checkpoint, "save", wraps=checkpoint.save) as save:
        train(group, settings)
    return save.call_count


@pytest.mark.slow
@pytest.mark.parametrize("kind", [settings_for, grpo_settings])
def test_a_step_is_not_written_twice(rank_pool: RankPool, tmp_path: Path, kind: Any) -> None:
    files = write_run(tmp_path, samples=6, photos=False)
    name = "grpo" if kind is grpo_settings else "sft"
    settings = kind(files, name, steps=2, checkpoint_every=1)
    assert rank_pool.run(1, counted, settings) == [2]
    assert rank_pool.run(1, counted, kind(files, name, steps=2, checkpoint_every=1, resume=True)) == [0]
