"""What a pipeline cannot run is refused in one line, on every rank, before any waits for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from tests.runtime.pipeline_cases import Run, mesh_of, micro_batches
from tests.runtime.step_cases import MIXED
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

from trimtab.errors import RankDisagreementError, SettingsError, TrimtabError, UnknownModelError
from trimtab.runtime.model_layers import find_layers
from trimtab.runtime.pipeline import PipelinedVLM
from trimtab.runtime.pipeline_checks import check_mesh, check_model, check_plan, legal_micro_batches
from trimtab.schema.sequences import SequenceGroup
from trimtab.testing import RankPool

RUN = Run(bounds=(0, 4, 9), ranks=2)


def outcome(group: dist.ProcessGroup, build: Callable[[dist.ProcessGroup], Any]) -> tuple[type, str]:
    """The error of a rank, as every rank should see it."""
    try:
        build(group)
    except TrimtabError as error:
        return type(error), str(error)
    return type(None), ""


def refusal(pool: RankPool, build: Callable[[dist.ProcessGroup], Any]) -> tuple[type, str]:
    first, second = pool.run(2, outcome, build)
    assert first == second
    assert "\n" not in first[1]
    return first


def sharded(group: dist.ProcessGroup) -> None:
    model, mesh = RUN.model(), init_device_mesh("cpu", (2,))
    for block in model.model.language_model.layers:
        fully_shard(block, mesh=mesh)
    PipelinedVLM(model, RUN.plan(), mesh_of(group, 2))


def step(group: dist.ProcessGroup, change: Callable[[int, Any], Any]) -> None:
    model, mesh = RUN.model(), mesh_of(group, 2)
    batches = micro_batches(model, MIXED, 1, 0, 60)
    PipelinedVLM(model, RUN.plan(), mesh).step(change(group.rank(), batches))


def shared_sequences(group: dist.ProcessGroup) -> None:
    shared = SequenceGroup(first_rank=0, degree=2, rows=(5,), lengths=(8,))
    step(group, lambda rank, batches: [batches[0], replace(batches[1], sequence_groups=(shared,)), *batches[2:]])


def one_rank_without_micro_batches(group: dist.ProcessGroup) -> None:
    step(group, lambda rank, batches: batches if rank == 0 else [])


def other_micro_batches(group: dist.ProcessGroup) -> None:
    step(group, lambda rank, batches: batches if rank == 0 else batches[::-1])


def other_targets(group: dist.ProcessGroup) -> None:
    def change(rank: int, batches: Any) -> Any:
        return batches if rank == 0 else [replace(batches[0], targets=batches[0].targets + 1), *batches[1:]]

    step(group, change)


def a_denominator_of_zero(group: dist.ProcessGroup) -> None:
    model, mesh = RUN.model(), mesh_of(group, 2)
    PipelinedVLM(model, RUN.plan(), mesh).step(micro_batches(model, MIXED, 1, 0, 60), 0.0)


def batches_of_a_processor(group: dist.ProcessGroup) -> None:
    step(group, lambda rank, batches: [{"input_ids": torch.zeros(1, 3)}])


def other_plans(group: dist.ProcessGroup) -> None:
    run = RUN if group.rank() == 0 else replace(RUN, bounds=(0, 5, 9))
    PipelinedVLM(run.model(), run.plan(), mesh_of(group, 2))


def one_of_two_pipelines_without_micro_batches(group: dist.ProcessGroup) -> None:
    run = Run(bounds=(0, 9), ranks=1)
    model = run.model()
    batches = micro_batches(model, MIXED, 2, group.rank(), 60)
    PipelinedVLM(model, run.plan(), mesh_of(group, 1)).step(batches if group.rank() else [])


def moved_vision(group: dist.ProcessGroup) -> None:
    model, mesh = RUN.model(), mesh_of(group, 2)
    other = micro_batches(model, MIXED, 2, 0, 60, balance_vision=True)
    PipelinedVLM(model, RUN.plan(), mesh).step(other)


def test_sharded_weights(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, sharded)
    assert kind is SettingsError
    assert "language_model.layers.0" in text
    assert "FSDP2" in text


def test_sequences_shared_between_ranks(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, shared_sequences)
    assert kind is SettingsError
    assert "micro-batch 1: sample 5 is shared by 2 ranks" in text
    assert "max_degree=1" in text


def test_a_rank_without_micro_batches_is_an_error_on_all(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, one_rank_without_micro_batches)
    assert kind is SettingsError
    assert "rank 1: the step has no micro-batches" in text


def test_ranks_of_a_pipeline_with_other_micro_batches(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, other_micro_batches)
    assert kind is RankDisagreementError
    assert "rank 1" in text


def test_ranks_of_a_pipeline_with_other_tokens_of_the_same_shapes(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, other_targets)
    assert kind is RankDisagreementError
    assert "with other tokens than rank 1" in text


def test_a_denominator_that_is_not_positive(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, a_denominator_of_zero)
    assert kind is SettingsError
    assert "denominator=0.0 must be positive" in text


def test_micro_batches_of_another_kind(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, batches_of_a_processor)
    assert kind is SettingsError
    assert "micro-batch 0 is a dict; give PackedBatch" in text


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"rounding": 0}, "rounding=0"), ({"rounding": -3}, "rounding=-3"), ({"cached_shapes": 0}, "cached")],
)
def test_settings_out_of_range(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        PipelinedVLM(RUN.model(), RUN.plan(), cast(Any, None), **settings)


def test_ranks_with_other_plans(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, other_plans)
    assert kind is RankDisagreementError
    assert "the stage plan differs" in text


def test_a_pipeline_that_failed_ends_the_step_of_the_others(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(2, outcome, one_of_two_pipelines_without_micro_batches)
    assert first[0] is SettingsError
    assert second == (
        RankDisagreementError,
        "pipeline step: another pipeline that shares it failed; its ranks tell why",
    )


def test_vision_work_moved_between_pipelines(rank_pool: RankPool) -> None:
    kind, text = refusal(rank_pool, moved_vision)
    assert kind is SettingsError
    assert "balance_vision=False" in text


class Mesh:
    """Of the shape and names a check reads."""

    def __init__(self, names: tuple[str, ...] = ("data", "pipe"), ranks: int = 2) -> None:
        self.mesh_dim_names, self._ranks = names, ranks

    def size(self, dimension: int) -> int:
        return (1, self._ranks)[dimension]


@pytest.mark.parametrize(
    ("run", "mesh", "text"),
    [
        (RUN, Mesh(ranks=4), "pipelines of 4 ranks"),
        (Run(bounds=(0, 4, 8), ranks=2), Mesh(), "the model has 9"),
        (Run(bounds=(0, 9, 9), ranks=2), Mesh(), "without layers"),
        (Run(bounds=(0, 2, 4, 9), ranks=2), Mesh(), "3 stages"),
    ],
)
def test_plans_that_do_not_fit_model_or_mesh(run: Run, mesh: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        check_plan(run.plan(), find_layers(RUN.model()), mesh)


def test_a_mesh_with_other_dimensions() -> None:
    with pytest.raises(SettingsError, match="mesh_dim_names"):
        check_mesh(Mesh(names=("dp", "pp")))  # type: ignore[arg-type]


def test_a_plan_that_recomputes_for_a_model_in_evaluation_mode() -> None:
    recomputing = replace(RUN, recompute=True).plan()
    with pytest.raises(SettingsError, match=r"call model\.train\(\) first"):
        check_model(find_layers(RUN.model().eval()), recomputing)


def test_models_whose_layers_cannot_be_found() -> None:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text_model = Qwen2ForCausalLM(Qwen2Config(vocab_size=8, num_key_value_heads=2, **size))
    with pytest.raises(UnknownModelError, match="model type 'qwen2' cannot be found; known: qwen2_vl"):
        find_layers(text_model)
    with pytest.raises(UnknownModelError, match=r"has no model\.visual; use the model with its head"):
        find_layers(RUN.model().model)
    with pytest.raises(UnknownModelError, match="Linear holds no Transformers model"):
        find_layers(torch.nn.Linear(1, 1))
    emptied = RUN.model()
    emptied.model.visual.blocks = torch.nn.ModuleList()
    with pytest.raises(UnknownModelError, match="blocks holds no layer"):
        find_layers(emptied)


@pytest.mark.parametrize(
    ("count", "ranks", "chunks", "legal"), [(1, 4, 1, 4), (5, 4, 1, 5), (5, 2, 2, 6), (13, 4, 2, 15)]
)
def test_the_least_number_of_micro_batches_a_schedule_takes(count: int, ranks: int, chunks: int, legal: int) -> None:
    run = Run(bounds=tuple(range(ranks * chunks + 1)), ranks=ranks, chunks=chunks)
    assert legal_micro_batches(run.plan(), count) == legal
