"""TRL's SFTTrainer with balance: one process's gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from tests.chat_tokenizer import chat_tokenizer
from tests.integrations.test_huggingface_packs import as_launched
from tests.runtime.host_batches import HostData, reference
from tests.runtime.step_cases import MIXED

from trimtab.integrations.huggingface import BalancedLoop
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.testing import RankPool

pytest.importorskip("trl", reason="make test-slow installs TRL")

CASES = (*MIXED, (8, ()))


def trained(group: dist.ProcessGroup, family: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Change of the weights in one step of plain gradient descent, and what was logged."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class BalancedSFTTrainer(BalancedLoop, SFTTrainer):
        """As a user writes it."""

    with as_launched(group):
        data = HostData(family, CASES)
        before = {name: value.detach().clone() for name, value in data.model.named_parameters()}
        args = SFTConfig(
            output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, optim="sgd",
            learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, report_to=[],
            logging_steps=1, save_strategy="no", remove_unused_columns=False, disable_tqdm=True, max_steps=1,
            dataloader_pin_memory=False, ddp_find_unused_parameters=True, bf16=False, gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )  # fmt: skip
        trainer = BalancedSFTTrainer(
            data.model,
            args,
            train_dataset=Dataset.from_dict({"row": list(range(len(CASES)))}),
            data_collator=lambda items: data.padded([item["row"] for item in items]),
            processing_class=chat_tokenizer(),
            balance=BalancerSettings(threshold=0),
        )
        trainer.train()
        change = {name: (before[name] - value.detach()).numpy() for name, value in data.model.named_parameters()}
        return change, trainer.state.log_history[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_one_step_has_the_gradients_of_one_process(rank_pool: RankPool, tmp_path: Path, family: str) -> None:
    found = rank_pool.run(2, trained, family, tmp_path, timeout_s=170)
    _, grads = reference(family, CASES)
    assert found[0][1]["balance/moved_bytes"] > 0
    for change, _ in found:
        for name, grad in grads.items():
            scale = max(np.abs(grad).max(), 1e-3)
            np.testing.assert_allclose(change[name], grad, atol=2e-6 * scale, err_msg=name)
