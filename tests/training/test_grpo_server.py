"""Rollout by an inference server: what it is asked, what is made of its answers, and what it may do wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.chat_tokenizer import chat_tokenizer
from tests.training.chat_server import WORDS, chat_server
from tests.training.grpo_run import SHORT, grpo_settings, rollout_tokens, train_on_rank
from tests.training.small_run import write_run
from transformers import AutoModelForImageTextToText

from trimtab.errors import TrainingError
from trimtab.testing import RankPool
from trimtab.training.grpo.settings import GRPOSettings, ServerSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_run(tmp_path_factory.mktemp("server"), photos=False)


def served(files: dict[str, Any], name: str, url: str, **changes: Any) -> GRPOSettings:
    server = ServerSettings(**{"url": url, "timeout_s": 20.0, "retries": 1, **changes})
    return grpo_settings(files, name, steps=1, rollout=replace(SHORT, engine="server", server=server))


@pytest.mark.slow
def test_a_run_writes_weights_has_them_read_and_learns_from_the_answers(
    rank_pool: RankPool, files: dict[str, Any], tmp_path: Path
) -> None:
    with chat_server() as server:
        settings = served(files, "served", server.url, weights=str(tmp_path / "weights"))
        assert rank_pool.run(2, train_on_rank, settings) == [True, True]
    assert [path for path, _ in server.requests if path != "/v1/chat/completions"] == ["/update_weights_from_disk"]
    assert server.requests[0][1] == {"model_path": str(tmp_path / "weights")}
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "weights").config.model_type == "qwen2_5_vl"
    asked = [body for path, body in server.requests if path == "/v1/chat/completions"]
    assert len(asked) == 15
    kinds = {part["type"] for body in asked for m in body["messages"] for part in m["content"]}
    assert {"text", "image_url"} <= kinds
    assert all(m["role"] == "user" for body in asked for m in body["messages"])
    (step,) = [json.loads(line) for line in (settings.folder / "steps.jsonl").read_text().splitlines()]
    assert step["replies"] == 15
    assert step["cut_replies"] == 0
    assert step["logprob_difference_max"] is None
    assert step["grad_norm"] > 0


def test_replies_are_the_answers_tokens_whatever_the_ranks(rank_pool: RankPool, files: dict[str, Any]) -> None:
    with chat_server() as server:
        settings = served(files, "tokens", server.url)
        (one,) = rank_pool.run(1, rollout_tokens, settings, 1)
        two = rank_pool.run(2, rollout_tokens, settings, 1)
    assert two == [one, one]
    tokenizer = chat_tokenizer()
    assert {tokenizer.decode(tokens, skip_special_tokens=True) for tokens in one[0]} <= set(WORDS)
    assert all(tokens[-1] == tokenizer.eos_token_id for tokens in one[0])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 503}, "the server answered 503"),
        pytest.param({"text": b"hello"}, "answered no JSON", marks=pytest.mark.slow),
        ({"text": b'{"choices": []}'}, "is no chat completion"),
        ({"delay_s": 5.0}, "no answer within rollout.server.timeout_s=1 s"),
    ],
    ids=["refusing", "no json", "other json", "slow"],
)
def test_a_faulty_server_ends_the_run(
    rank_pool: RankPool, files: dict[str, Any], fault: dict[str, Any], said: str
) -> None:
    with chat_server() as server:
        for name, value in fault.items():
            setattr(server, name, value)
        settings = served(files, "faulty", server.url, timeout_s=1.0 if "delay_s" in fault else 20.0)
        ranks = 2 if "status" in fault else 1
        for error in rank_pool.run(ranks, train_on_rank, settings, return_exceptions=True):
            assert isinstance(error, TrainingError)
            assert said in str(error)
            assert "step 0, rollout, rank 0" in str(error)


def test_an_unreachable_server_is_named(rank_pool: RankPool, files: dict[str, Any]) -> None:
    settings = served(files, "unreachable", "http://127.0.0.1:9/v1")
    (error,) = rank_pool.run(1, train_on_rank, settings, return_exceptions=True)
    assert isinstance(error, TrainingError)
    assert "http://127.0.0.1:9/v1" in str(error)
    assert "cannot be reached" in str(error)
