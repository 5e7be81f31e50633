"""Batch balance in the Hugging Face Trainer and in TRL's SFTTrainer.

    class BalancedTrainer(BalancedLoop, Trainer): ...
    trainer = BalancedTrainer(model, args, train_dataset=..., data_collator=..., balance=BalancerSettings())
    check(trainer)
    trainer.train()

Only public extension points are used: ``get_batch_samples``, ``log`` and ``train`` (methods),
``model_accepts_loss_kwargs`` (attribute). The data loader stays the Trainer's own, so its resume and its epochs stay as
they are: the micro-batches of one optimizer step are taken from it, balanced, and handed on with its token count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trimtab.errors import SettingsError
from trimtab.families.family import BatchRows
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.runtime.host_batch import HostBatch

_LOSES_WEIGHTS = ("qwen2_vl", "qwen2_5_vl")
_COUPLED_LOSSES = {
    "bnpo": "its denominator is each rank's own",
    "sapo": "it is silently wrong with uneven sample counts",
}


class BalancedLoop:
    """Mix in before ``Trainer`` or ``SFTTrainer``.

    A single process trains as without it.
    """

    def __init__(
        self,
        *args: Any,
        balance: BalancerSettings | None = None,
        balance_rows: Mapping[str, BatchRows] | None = None,
        balance_group: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the trainer.

        Args:
            *args: of the trainer.
            balance: settings.
            balance_rows: what rows of batch keys of your own belong to: "tokens" or "samples".
            balance_group: the data-parallel ranks; None: all ranks.
            **kwargs: of the trainer.

        Raises:
            SettingsError: a setting contradicts the Trainer's loop.
        """
        super().__init__(*args, **kwargs)
        self.balance_settings = balance or BalancerSettings()
        if self.balance_settings.plan.max_tokens_per_micro_batch is not None:
            raise SettingsError(
                "max_tokens_per_micro_batch may add micro-batches, but Trainer runs gradient_accumulation_steps of "
                "them; use max_tokens_per_rank, which caps each"
            )
        if self.balance_settings.background:
            raise SettingsError("Trainer asks for one step at a time; set background=False")
        trainer: Any = self
        trainer.model_accepts_loss_kwargs = True  # many vision-language models say False, and are averaged wrongly
        self._rows = balance_rows
        self._group = balance_group
        self._scalars: dict[str, list[float]] = {}
        self.balancer: BatchBalancer | None = None

    def get_batch_samples(
        self, epoch_iterator: Iterator[HostBatch], num_batches: int, device: torch.device
    ) -> tuple[list[HostBatch], Any]:
        """The micro-batches of one step, balanced, and its loss tokens over all ranks."""
        trainer: Any = super()
        balancer = self._balancer()
        if balancer is None:
            return trainer.get_batch_samples(epoch_iterator, num_batches, device)
        step = next(balancer.steps(_Taken(epoch_iterator, num_batches), micro_batches=num_batches), None)
        if step is None:
            return [], None
        return step.micro_batches, torch.tensor(step.denominator, device=device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the mean of ``balance/...`` since the last log."""
        logs.update({name: sum(values) / len(values) for name, values in self._scalars.items()})
        self._scalars.clear()
        trainer: Any = super()
        trainer.log(logs, *args, **kwargs)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Check, then train; prints what balance did at the end.

        Raises:
            SettingsError: see ``check``.
        """
        check(self, resume_from_checkpoint=resume_from_checkpoint)
        trainer: Any = super()
        result = trainer.train(resume_from_checkpoint, *args, **kwargs)
        me: Any = self
        if self.balancer is not None and me.is_world_process_zero():
            print(self.balancer.summary(), flush=True)
        return result

    def _balancer(self) -> BatchBalancer | None:
        if self.balancer is None and self.balance_settings.mode != "off" and dist.is_initialized():
            me: Any = self
            group = self._group or dist.group.WORLD
            assert group is not None
            self.balancer = BatchBalancer.for_model(
                me.accelerator.unwrap_model(me.model).config,
                group,
                self.balance_settings,
                rows=self._rows,
                logger=self._collect,
            )
        return self.balancer

    def _collect(self, name: str, value: float) -> None:
        self._scalars.setdefault(name, []).append(value)


class _Taken:
    """At most so many items of an iterator that goes on."""

    def __init__(self, iterator: Iterator[HostBatch], count: int) -> None:
        self._iterator = iterator
        self._left = count

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return next(self._iterator)


def check(trainer: Any, *, resume_from_checkpoint: Any = None) -> None:
    """Fail loudly on what would silently train wrongly, or hang.

    Args:
        trainer: a Trainer or SFTTrainer, with or without ``BalancedLoop``.
        resume_from_checkpoint: as given to ``train``.

    Raises:
        SettingsError: names everything found, and what to do.
    """
    found = [*_loss_problems(trainer), *_loader_problems(trainer), *_parameter_problems(trainer)]
    found += _resume_problems(trainer, resume_from_checkpoint or trainer.args.resume_from_checkpoint)
    if found:
        raise SettingsError("this trainer would not train right:\n- " + "\n- ".join(found))


def _loss_problems(trainer: Any) -> Iterator[str]:
    if not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None:
        yield (
            f"{type(trainer.model).__name__} averages each micro-batch by itself; set "
            "trainer.model_accepts_loss_kwargs = True, or give compute_loss_func"
        )
    if not trainer.args.average_tokens_across_devices:
        yield "average_tokens_across_devices=False normalises each rank by itself; leave it True"
    loss_type = getattr(trainer.args, "loss_type", None)
    if loss_type in _COUPLED_LOSSES:
        why = _COUPLED_LOSSES[loss_type]
        yield f"loss_type={loss_type!r} changes with the placement of samples: {why}; use another"


def _loader_problems(trainer: Any) -> Iterator[str]:
    loader = trainer.accelerator.dataloader_config
    streamed = isinstance(trainer.train_dataset, torch.utils.data.IterableDataset)
    if loader.dispatch_batches or (loader.dispatch_batches is None and streamed):
        yield (
            "rank 0 would read all batches and slice their tensors, which cuts visuals apart; set "
            "accelerator_config={'dispatch_batches': False}"
        )
    if loader.split_batches:
        yield "split_batches=True slices tensors by rows, which cuts visuals apart; set it to False"


def _parameter_problems(trainer: Any) -> Iterator[str]:
    kind = str(getattr(trainer.accelerator.distributed_type, "value", ""))
    given = trainer.args.ddp_find_unused_parameters
    off = given is False or (given is None and trainer.args.gradient_checkpointing)
    if kind.startswith("MULTI") and off and not getattr(trainer, "encoder_runs_on_every_rank", False):
        yield (
            "a step without any image would hang DDP, since the vision encoder gets no gradient; set "
            "ddp_find_unused_parameters=True, or balance the encoder (balance_model_vision) and set "
            "trainer.encoder_runs_on_every_rank = True"
        )
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    settings = getattr(trainer, "balance_settings", None)
    if plugin is not None and plugin.zero_stage == 3 and settings is not None and settings.plan.sync != "layer":
        yield f"DeepSpeed ZeRO-3 meets in every layer, but plan.sync={settings.plan.sync!r}; set sync='layer'"


def _resume_problems(trainer: Any, checkpoint: Any) -> Iterator[str]:
    config = trainer.accelerator.unwrap_model(trainer.model).config
    if not checkpoint or config.model_type not in _LOSES_WEIGHTS:
        return
    loaded_from = str(getattr(config, "name_or_path", "") or "")
    if checkpoint is True or not loaded_from or Path(loaded_from).resolve() != Path(str(checkpoint)).resolve():
        yield (
            f"Transformers restores almost no weight of {config.model_type} on resume "
            "(huggingface/transformers#43701); "
            f"build the model with from_pretrained({str(checkpoint)!r}) first, then resume"
        )
