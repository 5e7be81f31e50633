"""Explanations name what holds the slowest rank up and what would help."""

from dataclasses import replace

from planning_cases import batch_of, costs_of, sharded_costs_of

from trimtab.planning.explain import explain
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.metadata import BatchMetadata


def explained(batch: BatchMetadata, ranks: int, settings: PlanSettings, patch_ns: int = 200) -> list[str]:
    costs = costs_of(batch, patch_ns)
    return explain(plan_step(batch, costs, ranks, settings), batch, costs, settings)


def test_a_dominating_sample_should_be_sharded() -> None:
    lines = explained(batch_of([8000, *[500] * 40]), 8, PlanSettings())
    assert "sample sample-0 alone (8000 tokens)" in lines[-2]
    assert lines[-1].startswith("shard it: a sequence-parallel degree of")


def test_a_degree_beyond_the_one_allowed_is_said_to_be_so() -> None:
    lines = explained(batch_of([8000, *[500] * 40]), 8, PlanSettings(max_degree=1))
    assert lines[-1].endswith("that needs a max_degree above 1")


def test_a_degree_beyond_the_ranks_is_said_to_be_so() -> None:
    batch = batch_of([8000, *[500] * 2])
    costs = replace(costs_of(batch), legal_degrees=(1, 8))
    lines = explain(plan_step(batch, costs, 4, PlanSettings()), batch, costs, PlanSettings(max_degree=8))
    assert lines[-1].endswith("that needs 8 ranks, there are 4")


def test_a_plan_that_balancing_would_beat_says_so() -> None:
    assert explained(batch_of([4000, 4000, 100, 100]), 2, PlanSettings(strategy="as-is"))[-1].startswith("balance it:")


def test_an_even_plan_needs_nothing() -> None:
    assert explained(batch_of([500] * 64), 8, PlanSettings())[-1].startswith("nothing to improve")


def test_vision_left_with_its_samples_should_be_split() -> None:
    batch = batch_of([10] * 4, [[(60, 20, 20)], [], [], []])
    lines = explained(batch, 4, PlanSettings(balance_vision=False), patch_ns=100_000)
    assert lines[-1].startswith("split: visuals are encoded where")


def test_a_frame_too_large_to_share_is_named() -> None:
    batch = batch_of([10] * 4, [[(1, 80, 80)], [(1, 4, 4)], [], []])
    assert "a frame of 80x80 patches (sample sample-0)" in explained(batch, 4, PlanSettings(), patch_ns=10_000)[-1]


def test_a_tight_cap_is_blamed() -> None:
    batch = batch_of([900, 900, 500, 500, 500, 10, 10, 10])
    settings = PlanSettings(max_tokens_per_micro_batch=1000, sync="layer")
    assert any("cap" in line or "shard" in line for line in explained(batch, 2, settings)[1:])


def test_holes_of_a_plan_that_shards_are_not_blamed_on_whole_samples() -> None:
    batch = batch_of([2632, 3659, 2064, 2465, 3885, 2945, 2565])
    costs, settings = sharded_costs_of(batch, 4), PlanSettings(strategy="adaptive", max_degree=2)
    lines = explain(plan_step(batch, costs, 4, settings), batch, costs, settings)
    assert lines[-1] == "few samples: 7 on 4 ranks leave holes; take more samples a step"


def test_an_empty_step() -> None:
    assert explained(batch_of([]), 4, PlanSettings())[-1] == "nothing to improve"
