"""Held-out samples that cannot be loaded, after all else is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.small_run import train_on_rank, write_run

from trimtab.errors import LoaderError
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.evaluate import telling_of_the_model
from trimtab.training.settings import BalanceSettings, EvalSettings, SFTSettings


def test_a_bad_held_out_sample_is_told_with_what_is_there_already() -> None:
    said = r"sample-4: gone\.jpg; the model is written to m; --resume scores"
    with pytest.raises(LoaderError, match=said), telling_of_the_model(Path("m")):
        raise LoaderError("sample sample-4: gone.jpg")


@pytest.mark.slow
def test_a_resumed_run_scores_the_held_out_samples_that_can_be_loaded(rank_pool: RankPool, tmp_path: Path) -> None:
    files, held_out = write_run(tmp_path / "train"), write_run(tmp_path / "held_out")
    (tmp_path / "held_out" / "media" / "4-0.jpg").write_bytes(b"no image")
    settings = SFTSettings(
        **files,
        steps=1,
        samples_per_step=6,
        balance=BalanceSettings(costs="analytic"),
        evaluation=EvalSettings(data=held_out["data"], table=held_out["table"]),
    )
    with pytest.raises(LoaderError) as ended:
        rank_pool.run(1, train_on_rank, settings)
    model = settings.folder / "model"
    for told in ("sample-4", "4-0.jpg", f"the model is written to {model}", "--resume loader.on_bad_sample=skip"):
        assert told in str(ended.value)
    assert (model / "model.safetensors").exists()
    again = replace(settings, resume=True, loader=LoaderSettings(on_bad_sample="skip"))
    assert rank_pool.run(1, train_on_rank, again) == [True]
    scored = json.loads((settings.folder / "evaluation.json").read_text())
    assert (scored["samples"], set(scored["not_loaded"])) == (11, {"sample-4"})
