"""Balances a host's micro-batches over data-parallel ranks: drop-in around any iterator.

    balancer = BatchBalancer.for_model(model.config, group, settings)
    for step in balancer.steps(loader, micro_batches=accumulation):
        for index, batch in enumerate(step.micro_batches):
            loss = model(**batch).loss * step.loss_scale(index)
            loss.backward()

A step: take the host's micro-batches apart -> two collectives of metadata -> plan on every rank -> compare plans ->
one all-to-all for each dtype -> put together in the host's form. Only the data-parallel group takes part. Tensor-,
pipeline- and context-parallel peers of a rank load the same batches and belong to data-parallel groups of their own,
whose members hold the same samples in the same order; so every such group makes the same plan, and peers stay
identical.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimtab.cost.analytic import analytic_costs
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.from_config import architecture_from_config
from trimtab.errors import RankDisagreementError, SettingsError
from trimtab.families.batch_layouts import batch_layout_for
from trimtab.families.family import BatchRows
from trimtab.runtime.background import in_background
from trimtab.runtime.balance_report import BalanceTotals, Logger, emit, say
from trimtab.runtime.balanced_step import BalancedStep
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.runtime.depack import depack
from trimtab.runtime.host_batch import HostBatch, HostLayout, MicroBatch
from trimtab.runtime.placed_batches import placed_batches
from trimtab.runtime.sample_placement import CostModel, Placement, place_samples
from trimtab.runtime.settings_agreement import agree_on_settings
from trimtab.runtime.shared_error import raise_on_every_rank
from trimtab.runtime.step_metadata import StepMetadata, all_gather_row, gather_metadata
from trimtab.runtime.unbalanced_step import unbalanced_step
from trimtab.schema.setting_checks import check_whole


class BatchBalancer:
    """Balances micro-batches; see the module. All state is in ``state_dict``."""

    def __init__(
        self,
        layout: HostLayout,
        cost_model: CostModel,
        group: dist.ProcessGroup,
        settings: BalancerSettings | None = None,
        *,
        name: str = "train",
        logger: Logger | None = None,
    ) -> None:
        """Make a balancer; not a collective.

        Args:
            layout: of the model's batches.
            cost_model: what samples cost; the same on every rank.
            group: the data-parallel ranks (``mesh["dp"].get_group()``).
            settings: of the balancer.
            name: tells balancers that share a group apart.
            logger: takes ``balance/...`` names and values, on the first rank.

        Raises:
            SettingsError: background preparation on the default group.
        """
        self.settings = settings or BalancerSettings()
        if self.settings.background and group is dist.group.WORLD:
            raise SettingsError(
                "background=True on the default group would mix its collectives with the training's; give a group of "
                "its own, dist.new_group(backend='gloo')"
            )
        self._layout = layout
        self._cost_model = cost_model
        self._group = group
        self._name = name
        self._logger = logger
        self._agreed = False
        self._consumed = 0
        self._host_state: Any = None
        self._warned = False
        self.totals = BalanceTotals(what="batch")
        self.step: BalancedStep | None = None

    @staticmethod
    def for_model(
        config: Any,
        group: dist.ProcessGroup,
        settings: BalancerSettings | None = None,
        *,
        cost_model: CostModel | None = None,
        rows: Mapping[str, BatchRows] | None = None,
        placeholders: Mapping[str, int] | None = None,
        encoder_balanced: bool = False,
        name: str = "train",
        logger: Logger | None = None,
    ) -> BatchBalancer:
        """A balancer for a Transformers model.

        Args:
            config: ``model.config``, or its dictionary.
            group: the data-parallel ranks.
            settings: of the balancer.
            cost_model: what samples cost; None: from the configuration's architecture.
            rows: what rows of the host's own batch keys belong to: "tokens" or "samples".
            placeholders: token id by kind of visual, where the config names none.
            encoder_balanced: ``balance_model_vision`` spreads the encoder's work, so samples are placed by their
                language work alone; sets ``settings.plan.balance_vision``.
            name: tells balancers that share a group apart.
            logger: takes names and values.

        Raises:
            UnknownModelError: the model type is unknown.
            SettingsError: the config has no placeholder ids.
        """
        if not isinstance(config, Mapping) and not hasattr(config, "to_dict"):
            raise SettingsError(f"config is a {type(config).__name__}; give model.config, or its dictionary")
        values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
        layout = HostLayout(
            batch_layout_for(str(values.get("model_type"))), values, rows=rows, placeholders=placeholders
        )
        if cost_model is None:
            architecture = architecture_from_config(values)
            cost_model = partial(analytic_costs, architecture=architecture, device=NOMINAL_DEVICE)
        settings = settings or BalancerSettings()
        if encoder_balanced:
            settings = replace(settings, plan=replace(settings.plan, balance_vision=True))
        return BatchBalancer(layout, cost_model, group, settings, name=name, logger=logger)

    def steps(self, host: Iterable[HostBatch], *, micro_batches: int = 1) -> Iterator[BalancedStep]:
        """Balance an iterable of micro-batches, one optimizer step after another; collective.

        Args:
            host: the dataloader; its ``state_dict`` and ``load_state_dict`` are used where it has them. A loop in the
                background that is left early has read one step further; the next ``steps`` sets such a loader back.
            micro_batches: of one optimizer step.

        Raises:
            SettingsError: ``micro_batches`` is below 1 on some rank; on every rank.
            TrimtabError: on every rank, where any rank fails.
            RankDisagreementError: ranks differ in settings, form, dtype or step count.
        """
        source = self._prepared(host, micro_batches)
        for step in in_background(source) if self.settings.background else source:
            self._take(step)
            yield step
        self._warn_of_unscaled_loss(self.step)
        if self._group.rank() == 0 and (self.settings.verbose or self.settings.mode == "observe"):
            say(self.summary())

    def micro_batches(self, host: Iterable[HostBatch], *, micro_batches: int = 1) -> Iterator[HostBatch]:
        """The same as a flat iterator, for loops that count micro-batches themselves; ``step`` is the present one."""
        for step in self.steps(host, micro_batches=micro_batches):
            yield from step.micro_batches

    def balance(self, batches: Sequence[HostBatch]) -> BalancedStep:
        """Balance the micro-batches of one step that are there already; collective.

        Raises:
            TrimtabError: see ``steps``.
        """
        step = self._balance(self._consumed, list(batches), None, None)
        if step is None:
            raise RankDisagreementError(f"balance step {self._consumed}: no rank has a micro-batch")
        self._take(step)
        return step

    def summary(self) -> str:
        """What balance did or would have done so far, in one line."""
        return self.totals.line(self.settings.mode)

    def state_dict(self) -> dict[str, Any]:
        """What was consumed, not what was prepared; take it between steps."""
        return {"steps": self._consumed, "host": self._host_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the steps a checkpoint consumed, before ``steps`` is called."""
        self._consumed = int(state["steps"])
        self._host_state = state["host"]

    def _take(self, step: BalancedStep) -> None:
        self._warn_of_unscaled_loss(self.step)
        self.step = step
        self._consumed = step.index + 1
        self._host_state = step.host_state
        if step.record:
            self.totals.add(step.record)
            emit(step.record, first=self._group.rank() == 0, verbose=self.settings.verbose, logger=self._logger)

    def _warn_of_unscaled_loss(self, done: BalancedStep | None) -> None:
        if done and done.record and done.record.applied and not done.scaled and not self._warned:
            self._warned = True
            warnings.warn(
                "samples moved between ranks, but no loss was scaled by the step's denominator: a mean over each "
                "rank's own tokens changes with every placement; multiply it by step.loss_scale(index)",
                stacklevel=4,
            )

    def _prepared(self, host: Iterable[HostBatch], micro_batches: int) -> Iterator[BalancedStep]:
        iterator: Iterator[HostBatch] | None = None
        index = self._consumed
        while True:
            error: Exception | None = None
            batches: list[HostBatch] = []
            state: Any = None
            try:
                check_whole("micro_batches", micro_batches, 1)
                iterator = iterator or self._begun(host)
                batches = list(islice(iterator, micro_batches))
                state = host.state_dict() if hasattr(host, "state_dict") else None
            except Exception as failure:  # told to all ranks below
                error = failure
            step = self._balance(index, batches, state, error)
            if step is None:
                return
            yield step
            index += 1

    def _begun(self, host: Iterable[HostBatch]) -> Iterator[HostBatch]:
        if self._host_state is not None and hasattr(host, "load_state_dict"):
            host.load_state_dict(self._host_state)
        return iter(host)

    def _balance(
        self, index: int, batches: list[HostBatch], host_state: Any, error: Exception | None
    ) -> BalancedStep | None:
        """None where no rank has data."""
        began = time.perf_counter()
        self._agree_on_settings()
        if self.settings.mode == "off":
            if error:
                raise error
            return unbalanced_step(index, batches, host_state, self._group) if batches else None
        parts, error = self._depack(batches, error)
        metadata = self._gather(index, parts, error)
        if metadata is None:
            return None
        planning = time.perf_counter()
        placement = self._agreed_placement(index, metadata)
        planned = time.perf_counter()
        placed = placed_batches(parts, metadata, placement, self._layout, self._group, self.settings)
        record = placed.record(
            index,
            self.settings.mode,
            planning_ms=(planned - planning) * 1e3,
            total_ms=(time.perf_counter() - began) * 1e3,
        )
        totals = (float(metadata.loss_weight.sum()), int((metadata.loss_weight > 0).sum()))
        return BalancedStep(
            index=index,
            micro_batches=placed.batches,
            loss_weights=placed.loss_weights,
            totals=lambda: totals,
            ranks=self._group.size(),
            record=record,
            host_state=host_state,
        )

    def _agree_on_settings(self) -> None:
        if not self._agreed:
            shared = {**self._layout.shared(), **asdict(self.settings)}
            agree_on_settings(self._group, "the balancers' settings", shared)
            self._agreed = True

    def _depack(
        self, batches: Sequence[HostBatch], error: Exception | None
    ) -> tuple[list[MicroBatch], Exception | None]:
        if error is not None:
            return [], error
        try:
            return [depack(batch, self._layout) for batch in batches], None
        except Exception as failure:  # told to all ranks by the gathering
            return [], failure

    def _gather(self, index: int, parts: list[MicroBatch], error: Exception | None) -> StepMetadata | None:
        metadata = gather_metadata(
            parts,
            self._layout,
            group=self._group,
            step=index,
            stream=_digest(self._name),
            multiple=self.settings.pad_to_multiple_of,
            error=error,
        )
        if metadata is not None and len(set(metadata.held)) > 1 and self.settings.uneven_ends == "raise":
            held = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(metadata.held))
            raise RankDisagreementError(
                f"balance step {index}: ranks hold different numbers of micro-batches ({held}); give every rank as "
                "much data, drop the uneven end, or set uneven_ends='share'"
            )
        return metadata

    def _agreed_placement(self, index: int, metadata: StepMetadata) -> Placement:
        """Plan, and compare with the other ranks; a collective."""
        error: Exception | None = None
        placement, digest = None, 0
        moving = self.settings.mode == "on" and index >= self.settings.warmup_steps
        try:
            placement = place_samples(
                metadata, self._layout, self._cost_model, self._group.size(), self.settings, moving=moving
            )
            digest = int(placement.digest(), 16) - (1 << 63)
        except Exception as failure:  # told to all ranks here
            error = failure
        table = all_gather_row(torch.tensor([int(error is not None), digest]), self._group)
        if table[:, 0].any():
            raise_on_every_rank(self._group, f"balance step {index}", error)
        different = np.flatnonzero(table[:, 1] != table[0, 1])
        if len(different) or placement is None:
            digests = [f"{value + (1 << 63):016x}" for value in table[:, 1].tolist()]
            raise RankDisagreementError(
                f"balance step {index}: rank 0 planned {digests[0]} but rank {different[0]} planned "
                f"{digests[different[0]]}; use the same versions, settings and cost model on every rank"
            )
        return placement


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
