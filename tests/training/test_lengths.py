"""Samples that are too long are found before the first step, exactly those the planner refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tests.planning.planning_cases import LANGUAGE, batch_of, sharded_costs_of

from trimtab.errors import DatasetError, InfeasibleError
from trimtab.planning.step import plan_step
from trimtab.schema.metadata import SampleMetadata
from trimtab.schema.table import MetadataTable
from trimtab.training.grpo.settings import GRPOSettings, RewardSettings, RolloutSettings
from trimtab.training.lengths import check_lengths, check_prompt_lengths
from trimtab.training.settings import BalanceSettings, EvalSettings, SFTSettings

THREE_HEADS = replace(LANGUAGE, heads=6, kv_heads=3)  # legal degrees 1, 3, 6


def settings_with(cap: int | None, **balance: object) -> SFTSettings:
    return SFTSettings(
        model=Path("m"),
        data=("a.jsonl",),
        table=Path("t.parquet"),
        max_tokens_per_micro_batch=cap,
        balance=BalanceSettings(**balance),  # type: ignore[arg-type]
    )


def table_of(*tokens: int) -> MetadataTable:
    samples = [
        SampleMetadata(sample_id=f"t:{row}", text_tokens=count, loss_tokens=5, visuals=())
        for row, count in enumerate(tokens)
    ]
    return MetadataTable.from_samples(samples)


def refused(settings: SFTSettings, *tokens: int, ranks: int = 2, language: object = LANGUAGE) -> str:
    try:
        check_lengths(settings, language, ranks, table_of(*tokens), None)  # type: ignore[arg-type]
    except InfeasibleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("mode", ["on", "off"])
def test_what_is_refused_is_what_the_planner_refuses(mode: str) -> None:
    found = set()
    for language, ranks, degree in product((LANGUAGE, THREE_HEADS), (1, 2, 3, 4), (1, 2, 3, 4)):
        for tokens in (100, 101, 200, 201, 300, 301, 400, 401):
            settings = settings_with(100, mode=mode, max_degree=degree)
            wanted = settings.balance.plan_settings(100)[0]
            batch = batch_of([60, tokens, 90], [(), (), ()])
            costs = sharded_costs_of(batch, ranks, degree, language)
            try:
                plan_step(batch, costs, ranks, wanted)
                planned = True
            except InfeasibleError:
                planned = False
            assert planned == (not refused(settings, 60, tokens, 90, ranks=ranks, language=language))
            found.add(planned)
    assert found == {True, False}


@pytest.mark.parametrize(
    ("settings", "ranks", "said"),
    [
        (settings_with(700), 2, "set max_tokens_per_micro_batch=744, set balance.max_degree=2 for 2 ranks to share it"),
        (settings_with(700, mode="off"), 2, "set balance.max_degree=2 balance.mode=on for 2 ranks to share it"),
        (settings_with(700, sync="step"), 2, "set balance.max_degree=2 balance.sync=micro_batch for 2 ranks"),
        (settings_with(300, max_degree=2), 2, "max_tokens_per_micro_batch=372, set balance.max_degree=4 ranks=4 for 4"),
        (settings_with(50), 2, "set max_tokens_per_micro_batch=744, or scan without what is longer"),
    ],
)
def test_the_settings_that_would_do_are_named(settings: SFTSettings, ranks: int, said: str) -> None:
    assert said in refused(settings, 100, 744, 744, ranks=ranks)


def test_how_many_are_too_long_and_the_longest_are_named() -> None:
    told = refused(settings_with(700), 100, 744, 745)
    assert told.startswith(
        "t.parquet: 2 samples of 3 cannot run within max_tokens_per_micro_batch=700; the longest, t:2, takes 745 tokens"
    )
    assert refused(settings_with(None), 745) == ""


def test_held_out_samples_have_the_same_cap() -> None:
    evaluation = EvalSettings(data=("h.jsonl",), table=Path("h.parquet"))
    settings = replace(settings_with(700), evaluation=evaluation)
    with pytest.raises(InfeasibleError, match=r"^h\.parquet: 1 sample of 2 cannot run"):
        check_lengths(settings, LANGUAGE, 2, table_of(100), table_of(100, 744))


def test_prompts_must_fit_with_their_longest_reply() -> None:
    def grpo(cap: int) -> GRPOSettings:
        return GRPOSettings(
            model=Path("m"),
            data=("a.jsonl",),
            table=Path("t.parquet"),
            max_tokens_per_micro_batch=cap,
            rollout=RolloutSettings(max_reply_tokens=50),
            reward=RewardSettings(function="r.py:f"),
        )

    prompts = [25, 95]

    def told(settings: GRPOSettings) -> str:
        try:
            check_prompt_lengths(settings, LANGUAGE, 2, table_of(30, 100), prompts.__getitem__)
        except InfeasibleError as error:
            return str(error)
        return ""

    assert "takes 145 tokens with a reply of rollout.max_reply_tokens=50" in told(grpo(144))
    assert told(grpo(145)) == ""


def test_prompts_are_as_long_as_they_are_whatever_else_the_table_counts() -> None:
    settings = GRPOSettings(
        model=Path("m"),
        data=("a.jsonl",),
        table=Path("t.parquet"),
        max_tokens_per_micro_batch=60,
        rollout=RolloutSettings(max_reply_tokens=10),
        reward=RewardSettings(function="r.py:f"),
    )
    read: list[int] = []

    def prompt_tokens(row: int) -> int:
        read.append(row)
        if row == 3:
            raise DatasetError("its prompt is longer than rollout.max_prompt_tokens")
        return {1: 20, 2: 51}[row]

    with pytest.raises(InfeasibleError, match=r"^t\.parquet: 1 sample of 4 .*; the longest, t:2, takes 61 tokens"):
        check_prompt_lengths(settings, LANGUAGE, 2, table_of(10, 110, 111, 300), prompt_tokens)
    assert read == [1, 2, 3]  # what is short with its answer is not read
