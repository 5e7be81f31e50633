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
            SettingsError: the arguments would change the loss, lose samples or leave ranks waiting; names the remedy.
        """
        check_arguments(args, packs)
        if args.max_steps <= 0:
            args = copy.copy(args)
            args.max_steps = steps_of_epochs(packs, args.num_train_epochs)
        arguments.setdefault("data_collator", PackCollator(model))
        super().__init__(model, args, **arguments)
        self._packs = packs
        # many VLM classes say False, and the Trainer then averages means of unequal micro-batches
        self.model_accepts_loss_kwargs = True

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


def check_arguments(args: TrainingArguments, packs: PackSampler) -> None:
    """Refuse what would go wrong silently.

    Raises:
        SettingsError: names the argument and the value that is right.
    """
    loading = args.accelerator_config
    wrong = [
        (
            f"packs are dealt to {packs.ranks} ranks, the Trainer runs on {args.world_size}",
            packs.ranks,
            args.world_size,
        ),
        (
            f"a rank runs {packs.micro_batches} packs a step; set gradient_accumulation_steps={packs.micro_batches}",
            packs.micro_batches,
            args.gradient_accumulation_steps,
        ),
        (
            "set average_tokens_across_devices=True: ranks hold different numbers of tokens",
            True,
            args.average_tokens_across_devices,
        ),
        ("leave accelerator_config split_batches off: a pack is never split", False, bool(loading.split_batches)),
        (
            "leave accelerator_config dispatch_batches off: ranks load their own packs",
            False,
            bool(loading.dispatch_batches),
        ),
    ]
    for message, wanted, found in wrong:
        if wanted != found:
            raise SettingsError(message)
