"""The Hugging Face Trainer on packs: the gradients of one process taking one sample at a time, every sample once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.step_cases import MIXED, Samples
from tests.runtime.test_placement_keeps_loss import reference
from transformers import TrainingArguments

from trimtab.demo.tiny_models import tiny_model
from trimtab.errors import SettingsError
from trimtab.integrations.huggingface_packs import EvenEpochs, PackedTrainer, steps_of_epochs
from trimtab.loader.pack_batches import ZeroLossRow
from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.sample_loads import SampleLoads
from trimtab.planning.packing.settings import PackSettings
from trimtab.testing import RankPool

FAMILY = "qwen3_vl"  # of the families here the one whose Trainer checkpoints load back


class Conversations:
    """The samples as a processor gives them, and which of them were asked for."""

    def __init__(self, samples: Samples) -> None:
        self._samples, self.asked = samples, []

    def __len__(self) -> int:
        return len(self._samples.cases)

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.asked.append(row)
        given = self._samples.stock_inputs(row)
        labels = torch.full_like(given["input_ids"], -100)
        labels[:, -self._samples.loss_tokens :] = given["input_ids"][:, -self._samples.loss_tokens :]
        kept = {name: value for name, value in given.items() if name not in ("position_ids", "use_cache")}
        return {**kept, "labels": labels}


def packs_of(samples: Samples, ranks: int, micro_batches: int) -> PackSampler:
    problem = SampleLoads.from_batch(samples.batch, None).problem(patches=None, tokens=40)
    return PackSampler(problem, ranks=ranks, micro_batches=micro_batches, seed=0)


@contextmanager
def as_launched(group: dist.ProcessGroup) -> Iterator[None]:
    """What torchrun tells a process, for accelerate to join the group that is there."""
    from accelerate.state import AcceleratorState, GradientState

    told = {"RANK": group.rank(), "LOCAL_RANK": group.rank(), "WORLD_SIZE": group.size()}
    told |= {"LOCAL_WORLD_SIZE": group.size(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def run_trainer(
    group: dist.ProcessGroup, folder: Path, micro_batches: int, arguments: dict[str, Any], resume: str | None
) -> tuple[list[float], dict[str, np.ndarray], list[int]]:
    """Train with plain gradient descent at rate 1; logged losses, change of the weights, rows loaded."""
    with as_launched(group):
        model = tiny_model(FAMILY, seed=0, dtype=torch.float64).train()
        samples = Samples(model, MIXED)
        dataset = Conversations(samples)
        given = {"max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True}
        given |= {"gradient_accumulation_steps": micro_batches, "disable_tqdm": True, "num_train_epochs": 1}
        args = TrainingArguments(str(folder), **{**given, **arguments})  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        trainer = PackedTrainer(
            model,
            args,
            packs=packs_of(samples, group.size(), micro_batches),
            train_dataset=dataset,
            optimizers=(optimizer, constant),
        )
        trainer.train(resume_from_checkpoint=resume)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        change = {name: (before[name] - p.detach()).numpy() for name, p in model.named_parameters()}
        return losses, change, dataset.asked


def test_a_step_of_packs_has_the_gradients_of_one_process(rank_pool: RankPool, tmp_path: Path) -> None:
    """To single precision, in which Transformers takes the cross entropy whatever the model's."""
    loss, gradients = reference(FAMILY, MIXED)
    for losses, change, _ in rank_pool.run(2, run_trainer, tmp_path, 3, {}, None):
        assert losses == [pytest.approx(loss, rel=1e-3)]  # as logged, rounded
        for name, gradient in gradients.items():
            scale = max(np.abs(gradient).max(), 1e-3)
            np.testing.assert_allclose(change[name], gradient, rtol=0, atol=1e-6 * scale, err_msg=name)


def rows_of_rank(steps: range, rank: int, ranks: int) -> list[int]:
    packs = packs_of(Samples(tiny_model(FAMILY), MIXED), ranks, 1)
    return [row for step in steps for row in packs.step(step).pack(rank, 0).tolist()]


@pytest.mark.slow
def test_epochs_are_whole_and_resume_is_exact(rank_pool: RankPool, tmp_path: Path) -> None:
    arguments = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = rank_pool.run(2, run_trainer, tmp_path, 1, arguments, None)
    steps = packs_of(Samples(tiny_model(FAMILY), MIXED), 2, 1).total_steps(2)
    assert steps > 3
    (losses, change, asked), (_, _, others) = whole
    assert len(losses) == steps
    assert asked == rows_of_rank(range(steps), 0, 2)
    assert others == rows_of_rank(range(steps), 1, 2)

    again = rank_pool.run(2, run_trainer, tmp_path, 1, arguments, str(tmp_path / "checkpoint-3"))
    for rank, (_, resumed, rows) in enumerate(again):
        assert rows == rows_of_rank(range(3, steps), rank, 2)
        for name, moved in resumed.items():
            assert np.array_equal(moved, change[name])


def test_trainer_epochs_of_equal_length_hold_whole_epochs_of_packs() -> None:
    """Epochs of packs differ in length, the Trainer's do not; one cut from the other must lose nothing."""
    rng = np.random.default_rng(0)
    problem = PackProblem.from_columns({"tokens": rng.integers(20, 60, 50)}, {"tokens": 100})
    packs = PackSampler(problem, ranks=2, micro_batches=2, seed=0, settings=PackSettings(method="isf", isf_rounds=1))
    assert len({packs.steps_in(epoch) for epoch in range(6)}) > 1
    batches, steps, rows = EvenEpochs(packs), steps_of_epochs(packs, 6), []
    for epoch in range(-(-steps // packs.steps_in(0))):
        batches.set_epoch(epoch)
        dealt = list(batches)
        assert len(dealt) == len(batches) == 4 * packs.steps_in(0)
        rows += dealt
    trained = [row for batch in rows[: 4 * steps] for row in batch if not isinstance(row, ZeroLossRow)]
    assert sorted(trained) == sorted(list(range(50)) * 6)
    assert steps_of_epochs(packs, 1.5) == packs.steps_in(0) + -(-packs.steps_in(1) // 2)


@pytest.mark.parametrize(
    ("micro_batches", "arguments", "said"),
    [
        (3, {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2; set it to 3"),
        (1, {"average_tokens_across_devices": False}, "average_tokens_across_devices=False normalises each rank"),
        (1, {"accelerator_config": {"split_batches": True}}, "split_batches=True slices tensors"),
    ],
)
def test_arguments_that_would_go_wrong_silently_are_refused(
    rank_pool: RankPool, tmp_path: Path, micro_batches: int, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        rank_pool.run(2, run_trainer, tmp_path, micro_batches, arguments, None)
