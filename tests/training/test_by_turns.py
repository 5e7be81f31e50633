"""Two runs by turns are the same two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.training.small_run import steps_of, train_on_rank, write_run

from trimtab.errors import SettingsError
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.testing import RankPool
from trimtab.training.by_turns import ByTurns, train_by_turns
from trimtab.training.settings import BalanceSettings, SFTSettings


def settings_for(files: dict[str, Any], **changes: Any) -> SFTSettings:
    plain: dict[str, Any] = {"steps": 5, "samples_per_step": 6, "name": "turns", "timeout_s": 30, "dtype": "float64"}
    plain["balance"] = BalanceSettings(costs="analytic")
    return SFTSettings(**{**files, **plain, **changes})


def turns_on_rank(group: dist.ProcessGroup, turns: ByTurns) -> bool:
    return train_by_turns(turns, ranks_of_default_group(torch.device("cpu"), timeout_s=30))


@pytest.mark.slow
def test_each_run_records_what_it_would_have_alone(rank_pool: RankPool, tmp_path: Path) -> None:
    files = write_run(tmp_path, photos=False)
    main = settings_for(files)
    other = replace(
        main, balance=BalanceSettings(mode="off", costs="analytic"), loader=LoaderSettings(mode="central"), stop_after=3
    )
    assert rank_pool.run(2, turns_on_rank, ByTurns(main=main, other=other, turn=2)) == [True, True]
    alone = settings_for(files, name="alone")
    rank_pool.run(2, train_on_rank, alone)
    losses = [step["loss"] for step in steps_of(alone)]
    assert [step["loss"] for step in steps_of(main)] == pytest.approx(losses, rel=1e-10)
    assert [step["loss"] for step in steps_of(other)] == pytest.approx(losses[:3], rel=1e-10)
    assert (main.folder / "model").exists()
    assert not (other.folder / "model").exists()


def test_runs_that_share_a_folder_are_refused(tmp_path: Path) -> None:
    settings = SFTSettings(model=tmp_path, data=(tmp_path,), table=tmp_path)
    with pytest.raises(SettingsError, match="both runs write to"):
        ByTurns(main=settings, other=settings)
