"""The Hugging Face Trainer with balance: one process's gradients, resume, and loud checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import DistributedType
from tests.integrations.test_huggingface_packs import as_launched
from tests.runtime.host_batches import HostData, reference
from tests.runtime.step_cases import MIXED
from transformers import Trainer, TrainingArguments

from trimtab.errors import SettingsError
from trimtab.integrations.huggingface import BalancedLoop, check
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.testing import RankPool

CASES = (*MIXED, (8, ()))


class BalancedTrainer(BalancedLoop, Trainer):
    """As a user writes it."""


def trainer_of(
    data: HostData, folder: Path, *, kind: type[Trainer] = BalancedTrainer, more: Any = (), **arguments: Any
) -> Any:
    rows = [{"row": row} for row in range(len(data.cases))]
    given: dict[str, Any] = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "optim": "sgd", "learning_rate": 1.0,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True, "report_to": [], "logging_steps": 1,
        "save_strategy": "no", "remove_unused_columns": False, "disable_tqdm": True, "max_steps": 1,
        "dataloader_pin_memory": False, "ddp_find_unused_parameters": True,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(folder), **(given | arguments))
    return kind(
        data.model, args, train_dataset=rows, data_collator=lambda items: data.padded([item["row"] for item in items]),
        **dict(more),
    )  # fmt: skip


def trained(
    group: dist.ProcessGroup, family: str, folder: Path, mode: Any, resume: str | None, arguments: dict[str, Any]
) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    """Change of the weights, and what was logged."""
    with as_launched(group):
        data = HostData(family, CASES)
        before = {name: value.detach().clone() for name, value in data.model.named_parameters()}
        settings = BalancerSettings(mode=mode, threshold=0)
        trainer = trainer_of(data, folder, more={"balance": settings}, **arguments)
        trainer.train(resume_from_checkpoint=resume)
        change = {name: (before[name] - value.detach()).numpy() for name, value in data.model.named_parameters()}
        return change, trainer.state.log_history


@pytest.mark.parametrize("mode", ["on", "observe"])
def test_one_step_has_the_gradients_of_one_process(rank_pool: RankPool, tmp_path: Path, mode: str) -> None:
    found = rank_pool.run(2, trained, "qwen2_5_vl", tmp_path, mode, None, {})
    loss, grads = reference("qwen2_5_vl", CASES)
    for change, _ in found:
        for name, grad in grads.items():
            scale = max(np.abs(grad).max(), 1e-3)
            np.testing.assert_allclose(change[name], grad, atol=2e-6 * scale, err_msg=name)
    logs = found[0][1]
    assert logs[0]["loss"] == pytest.approx(loss, rel=1e-4)
    assert (logs[0]["balance/moved_bytes"] > 0) == (mode == "on")
    assert logs[0]["balance/gain"] > 0


def test_a_resumed_run_ends_with_the_same_weights(rank_pool: RankPool, tmp_path: Path) -> None:
    steady = {"learning_rate": 0.1, "max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole, _ = rank_pool.run(2, trained, "qwen3_vl", tmp_path, "on", None, steady)[0]
    checkpoint = str(tmp_path / "checkpoint-2")
    resumed, _ = rank_pool.run(2, trained, "qwen3_vl", tmp_path, "on", checkpoint, steady)[0]
    for name, change in whole.items():
        np.testing.assert_allclose(resumed[name], change, atol=1e-12, err_msg=name)


def test_one_process_trains_as_without_balance(tmp_path: Path) -> None:
    data = HostData("qwen3_vl", CASES, dtype=torch.float32)
    trainer = trainer_of(data, tmp_path)
    trainer.train()
    assert trainer.balancer is None


@pytest.fixture
def data() -> HostData:
    return HostData("qwen2_5_vl", CASES[:2], dtype=torch.float32)


def test_a_stock_trainer_is_told_of_the_loss_flag(data: HostData, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="model_accepts_loss_kwargs = True"):
        check(trainer_of(data, tmp_path, kind=Trainer))


def test_a_balanced_trainer_passes(data: HostData, tmp_path: Path) -> None:
    check(trainer_of(data, tmp_path))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices"),
    ],
)
def test_arguments_that_break_a_run(data: HostData, tmp_path: Path, arguments: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        check(trainer_of(data, tmp_path, **arguments))


def test_losses_that_depend_on_the_placement(data: HostData, tmp_path: Path) -> None:
    trainer = trainer_of(data, tmp_path)
    trainer.args.loss_type = "bnpo"
    with pytest.raises(SettingsError, match="bnpo"):
        check(trainer)


def test_unused_parameters_under_ddp(data: HostData, tmp_path: Path) -> None:
    trainer = trainer_of(data, tmp_path, ddp_find_unused_parameters=False)

    check(trainer)  # one process needs no setting

    class Several:
        """The accelerator, as if of several processes."""

        distributed_type = DistributedType.MULTI_CPU

        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

    original, trainer.accelerator = trainer.accelerator, Several()
    with pytest.raises(SettingsError, match="ddp_find_unused_parameters"):
        check(trainer)
    trainer.encoder_runs_on_every_rank = True
    check(trainer)


def test_resume_that_would_lose_weights(data: HostData, tmp_path: Path) -> None:
    trainer = trainer_of(data, tmp_path)
    with pytest.raises(SettingsError, match=r"43701.*from_pretrained"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    data.model.config.name_or_path = str(tmp_path / "checkpoint-1")
    check(trainer, resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_settings_that_contradict_the_loop(data: HostData, tmp_path: Path) -> None:
    plan = PlanSettings(max_tokens_per_micro_batch=100)
    for wrong in (BalancerSettings(plan=plan), BalancerSettings(background=True)):
        with pytest.raises(SettingsError):
            trainer_of(data, tmp_path, more={"balance": wrong})
