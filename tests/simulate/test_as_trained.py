"""What the trainer makes of a strategy, and when that is something else than was simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulate_cases import job_with

from trimtab.simulate.as_trained import as_trained, is_trained_otherwise
from trimtab.simulate.run import simulate_strategy
from trimtab.simulate.scenario import LoadingSettings
from trimtab.simulate.strategies import strategy_named


def trained_otherwise(name: str, shared_by: int = 1, **changed: Any) -> bool:
    job = job_with(**changed)
    return is_trained_otherwise(job, strategy_named(name, job.scenario.task, job.scenario.sync), shared_by)


@pytest.mark.parametrize("changed", [{}, {"sync": "step"}, {"task": "grpo"}, {"shards": 8}, {"max_degree": 1}])
def test_trimtabs_own_way_is_what_is_trained(changed: dict[str, Any]) -> None:
    assert not trained_otherwise("all", **changed)
    assert not trained_otherwise("whole-sample", **changed)


@pytest.mark.parametrize(
    "changed", [{"tensor_parallel": 2}, {"shards": 4}, {"loading": LoadingSettings(prefetch=0)}, {"balance_vision": 0}]
)
def test_what_the_trainer_has_not_is_trained_otherwise(changed: dict[str, Any]) -> None:
    assert trained_otherwise("all", **changed)


def test_another_systems_way_is_trained_otherwise_unless_the_trainer_does_the_same() -> None:
    assert trained_otherwise("loongforge")
    assert trained_otherwise("as-is")
    assert not trained_otherwise("as-is", task="grpo")


def test_packs_are_trained_otherwise_where_ranks_shared_some() -> None:
    packed = {"pack_length": 65_536, "data": "geo3k", "batch_size": 8}
    assert not trained_otherwise("all", **packed)
    assert trained_otherwise("all", shared_by=2, **packed)


def test_other_exchanges_are_trained_otherwise_where_ranks_share_samples() -> None:
    assert not trained_otherwise("all", pack_tokens=65_536)
    assert trained_otherwise("all", shared_by=2, pack_tokens=65_536)
    trained, _ = as_trained(job_with(pack_below=1, pack_tokens=2), strategy_named("all", "sft"))
    assert trained.scenario == as_trained(job_with(), strategy_named("all", "sft"))[0].scenario


def test_a_simulation_tells_how_many_ranks_share_a_sample() -> None:
    job = job_with()
    assert simulate_strategy(job, strategy_named("uniform-2", "sft")).shared_by == 2
    assert simulate_strategy(job, strategy_named("whole-sample", "sft")).shared_by == 1


def test_every_device_is_a_rank_with_its_share_of_the_longest_sample() -> None:
    job = job_with(tensor_parallel=4, shards=4, max_degree=2, micro_batch_tokens=1)
    trained, own = as_trained(job, strategy_named("all", "sft"))
    longest = int(job.workload.samples.tokens.max())
    scenario = trained.scenario
    assert (scenario.tensor_parallel, scenario.shards, scenario.data_ranks, own.name) == (1, None, 8, "all")
    assert scenario.micro_batch_tokens == -(-longest // 2)


def test_a_controllers_processes_are_those_of_all_ranks() -> None:
    job = job_with(task="grpo", ranks=16)
    trained, own = as_trained(job, strategy_named("adaptive-only"))
    assert (own.loader, trained.scenario.loading.controller_workers) == ("controller", 16)
    plain, _ = as_trained(job, strategy_named("all"))
    assert plain.scenario == replace(job.scenario, max_degree=8)
