"""Where a run's samples are read from, and which it refuses to begin with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tests.training.small_run import scan, write_model

from trimtab.errors import MetadataError
from trimtab.families.checkpoint import read_checkpoint
from trimtab.loader.sample_reader import SampleReader
from trimtab.training.readers import open_readers
from trimtab.training.settings import EvalSettings, SFTSettings


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SFTSettings:
    """A run whose training and held-out images have the same relative path."""
    folder = tmp_path_factory.mktemp("run")
    write_model(folder / "model", "qwen2_5_vl")
    for part in ("train", "held_out", "elsewhere"):
        (folder / part).mkdir()
        Image.new("RGB", (64, 56)).save(folder / part / "picture.png")
    files = [_write(folder, part, answer="red") for part in ("train", "held_out")]
    data, tables = zip(*files, strict=True)
    return SFTSettings(
        model=folder / "model",
        data=(data[0],),
        table=tables[0],
        runs=folder / "runs",
        evaluation=EvalSettings(data=(data[1],), table=tables[1]),
    )


def test_root_is_for_the_training_data_alone(settings: SFTSettings) -> None:
    elsewhere = settings.model.parent / "elsewhere"
    training, held_out = opened(replace(settings, root=elsewhere))
    assert (folder_of(training), folder_of(held_out)) == ("elsewhere", "held_out")
    evaluation = replace(settings.evaluation, root=elsewhere)
    training, held_out = opened(replace(settings, evaluation=evaluation))
    assert (folder_of(training), folder_of(held_out)) == ("train", "elsewhere")


def test_held_out_samples_without_an_answer_are_refused(settings: SFTSettings) -> None:
    folder = settings.model.parent
    (folder / "prompts").mkdir()
    Image.new("RGB", (64, 56)).save(folder / "prompts" / "picture.png")
    data, table = _write(folder, "prompts", answer=None)
    evaluation = EvalSettings(data=(data,), table=table)
    with pytest.raises(MetadataError, match=r"prompts/data\.parquet: no held-out sample has an answer to score"):
        opened(replace(settings, evaluation=evaluation))


def opened(settings: SFTSettings) -> tuple[SampleReader, SampleReader | None]:
    model: Any = SimpleNamespace(base=None)  # asked for positions only when samples are encoded
    return open_readers(settings, read_checkpoint(settings.model), model, ranks=1, train_on="assistant")


def folder_of(reader: SampleReader | None) -> str:
    assert reader is not None
    return Path(reader.decode_task(0, 0, 0, 1).visual.source).parent.name


def _write(folder: Path, part: str, *, answer: str | None) -> tuple[Path, Path]:
    """A dataset of one sample, and its table."""
    parts = [{"type": "image", "image": "picture.png"}, {"type": "text", "text": "Which colour?"}]
    turns: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    if answer is not None:
        turns.append({"role": "assistant", "content": answer})
    data = folder / part / "data.jsonl"
    data.write_text(json.dumps({"id": part, "messages": turns}) + "\n")
    scan(folder / "model", data, data.with_suffix(".parquet"))
    return data, data.with_suffix(".parquet")
