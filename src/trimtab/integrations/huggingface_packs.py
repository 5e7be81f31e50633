"""Packs in the Hugging Face Trainer: its data loader deals packs, its loss is normalised over all tokens of a step.

Only public extension points are used: ``get_train_dataloader`` and ``model_accepts_loss_kwargs``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from trimtab.errors import SettingsError
from trimtab.integrations.huggingface import check
from trimtab.loader.pack_batches import ZeroLossDataset, batches_of
from trimtab.loader.pack_collate import PackCollator
from trimtab.loader.pack_sampler import PackSampler


class PackedTrainer(Trainer):
    """A ``Trainer`` whose micro-batches are packs.

        packs = pack_table(table, PackingSettings(method="best"), ranks=world_size, ...)
        PackedTrainer(model, args, train_dataset=dataset, packs=packs).train()

    ``train_dataset`` holds the samples by row of the table, as ``PackCollator`` takes them. ``packs`` decides how many
    a micro-batch has, so ``per_device_train_batch_size`` plays no part; ``gradient_accumulation_steps`` must be the
    packs a rank runs in a step. Training takes the steps of whole epochs of packs, each sample once in each. These
    differ in length, the Trainer's do not: what it logs as an epoch is as many steps as the first one has.
    """

    def __init__(
        self, model: PreTrainedModel, args: TrainingArguments, *, packs: PackSampler, **arguments: Any
    ) -> None:
        """Check that the arguments fit the packs; further arguments are the ``Trainer``'s.

        Raises:
            SettingsError: the packs are made for other ranks or another accumulation.
        """
        _check_packs(args, packs)
        if args.max_steps <= 0:
            args = copy.copy(args)
            args.max_steps = steps_of_epochs(packs, args.num_train_epochs)
        arguments.setdefault("data_collator", PackCollator(model))
        super().__init__(model, args, **arguments)
        self._packs = packs
        # many VLM classes say False, and the Trainer then averages means of unequal micro-batches
        self.model_accepts_loss_kwargs = True
        self.encoder_runs_on_every_rank = True  # on the blank image that PackCollator adds

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Check, then train.

        Raises:
            SettingsError: see ``huggingface.check``.
        """
        check(self, resume_from_checkpoint=resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """All ranks' packs in turn, of which accelerate gives this rank its own."""
        batches = EvenEpochs(self._packs)
        dataset = ZeroLossDataset(self.train_dataset, batches=batches)
        loader: DataLoader[Any] = DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


class EvenEpochs:
    """Batch sampler for a trainer whose epochs all have equally many steps: its epochs are cut from one run of steps.

    The epoch is told through ``ZeroLossDataset.set_epoch``: the Trainer's resume reaches no batch sampler.
    """

    def __init__(self, packs: PackSampler) -> None:
        """Deal the packs of all ranks; an epoch has the steps of the packs' first one."""
        self._packs, self._steps, self._epoch = packs, packs.steps_in(0), 0

    def __len__(self) -> int:
        return self._steps * self._packs.micro_batches * self._packs.ranks

    def __iter__(self) -> Iterator[list[int]]:
        first = self._epoch * self._steps
        for number in range(first, first + self._steps):
            yield from batches_of(self._packs.step(number), range(self._packs.ranks))

    def set_epoch(self, epoch: int) -> None:
        """Iterate over the steps of this epoch from now on."""
        self._epoch = epoch


def steps_of_epochs(packs: PackSampler, epochs: float) -> int:
    """Optimizer steps of so many epochs of packs."""
    whole = int(epochs)
    steps = packs.total_steps(whole)
    return steps + math.ceil((epochs - whole) * packs.steps_in(whole)) if epochs > whole else steps


def _check_packs(args: TrainingArguments, packs: PackSampler) -> None:
    if packs.ranks != args.world_size:
        raise SettingsError(
            f"packs are dealt to {packs.ranks} ranks, the Trainer runs on {args.world_size}; "
            f"make the packs with ranks={args.world_size}"
        )
    if packs.micro_batches != args.gradient_accumulation_steps:
        raise SettingsError(
            f"a rank runs {packs.micro_batches} packs a step, gradient_accumulation_steps is "
            f"{args.gradient_accumulation_steps}; set it to {packs.micro_batches}"
        )
