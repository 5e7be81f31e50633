"""Held-out samples: scored after all else is done, or told why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.chat_tokenizer import chat_tokenizer
from tests.training.sft_run import settings_for
from tests.training.small_run import train_on_rank, write_run
from transformers import AutoModelForImageTextToText

from trimtab.errors import LoaderError, MetadataError
from trimtab.families.registry import family_for
from trimtab.loader.settings import LoaderSettings
from trimtab.testing import RankPool
from trimtab.training.evaluate import evaluate, telling_of_the_model
from trimtab.training.settings import BalanceSettings, EvalSettings, SFTSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.mark.slow
def test_held_out_samples_are_scored(rank_pool: RankPool, files: dict[str, Any]) -> None:
    evaluation = EvalSettings(data=files["data"], table=files["table"], samples_per_step=5)
    settings = settings_for(files, "scored", steps=25, evaluation=evaluation)
    rank_pool.run(2, train_on_rank, settings)
    result = json.loads((settings.folder / "evaluation.json").read_text())
    assert result["samples"] == 12
    assert result["with_pixels"] == sum(result["right"].values()) / 12
    generated = {f"sample-{row}": generate_answer(settings, row) for row in (3, 7, 11)}
    for sample_id, answer in generated.items():
        assert result["right"][sample_id] == (answer == "blue")
    assert result["with_pixels"] > 0


def generate_answer(settings: SFTSettings, row: int) -> str:
    """What the stock model generates greedily for a text-only sample."""
    model = AutoModelForImageTextToText.from_pretrained(settings.folder / "model")
    tokenizer = chat_tokenizer()
    question = f"Which colour is the square {row}?"
    messages = [{"role": "user", "content": question}]
    template = family_for("qwen2_5_vl").chat_template
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt")
    generated = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(generated, skip_special_tokens=True))


def test_a_bad_held_out_sample_is_told_with_what_is_there_already() -> None:
    said = r"sample-4: gone\.jpg; the model is written to m; --resume scores"
    with pytest.raises(LoaderError, match=said), telling_of_the_model(Path("m")):
        raise LoaderError("sample sample-4: gone.jpg")


def test_where_nothing_could_be_scored_no_share_is_told() -> None:
    nothing: Any = mock.Mock()
    accuracy = evaluate(nothing, nothing, 0, nothing)
    assert (accuracy.samples, accuracy.with_pixels, accuracy.blanked) == (0, None, None)
    assert replace(accuracy, not_loaded={"sample-4": "no image"}).told() == [
        "held-out accuracy: nothing could be scored",
        "not scored, as it could not be loaded: 1 held-out sample",
        "  sample-4: no image",
    ]


def test_held_out_files_that_do_not_belong_together_are_told_before_the_first_step(
    rank_pool: RankPool, files: dict[str, Any]
) -> None:
    other = files["table"].parent / "other.jsonl"
    other.write_text(files["data"][0].read_text().splitlines(keepends=True)[0])
    evaluation = EvalSettings(data=[other], table=files["table"])
    settings = settings_for(files, "other_held_out", steps=1, evaluation=evaluation)
    with pytest.raises(MetadataError, match="scan"):
        rank_pool.run(1, train_on_rank, settings)
    assert not (settings.folder / "steps.jsonl").exists()


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
