"""One optimizer step of balanced micro-batches, and the loss scale that keeps the loss as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from trimtab.runtime.balance_report import BalanceRecord
from trimtab.runtime.host_batch import HostBatch
from trimtab.runtime.loss import gradient_scale

Reduction = Literal["mean", "sum"]


@dataclass(eq=False, kw_only=True)
class BalancedStep:
    """The micro-batches one rank runs in one optimizer step.

    Attributes:
        index: counted from 0.
        micro_batches: as the host's collator would have given them; equally many on every rank.
        loss_weights: sum of loss weights of each, on this rank.
        totals: gives the sum of loss weights over ranks and micro-batches, and the samples with any loss.
        ranks: of the group.
        record: what balance did; None where it is off.
        host_state: state of the host's loader after this step, where it has one.
        scaled: whether a denominator or loss scale was asked for.
    """

    index: int
    micro_batches: list[HostBatch]
    loss_weights: list[float]
    totals: Callable[[], tuple[float, int]]
    ranks: int
    record: BalanceRecord | None = None
    host_state: Any = None
    scaled: bool = field(default=False, init=False)

    @property
    def denominator(self) -> float:
        """Sum of loss weights over ranks and micro-batches; 1 where there is none, so that a sum of losses stays 0.

        Of labels that are not ignored, or of ``loss_weights`` (``loss_mask``) where batches have them. With balance
        off, the first use is a collective.
        """
        return self._totals[0] or 1.0

    @property
    def sequences(self) -> int:
        """Samples with any loss, over ranks and micro-batches."""
        return self._totals[1]

    @cached_property
    def _totals(self) -> tuple[float, int]:
        self.scaled = True
        return self.totals()

    def loss_scale(
        self, micro_batch: int = 0, *, reduction: Reduction = "mean", gradients_are_averaged: bool = True
    ) -> float:
        """What to multiply a micro-batch's loss by before ``backward()``.

        A loss that is the mean over this rank's tokens weighs a rank with few tokens as much as one with many, so it
        changes with every placement; times this scale it does not: over all ranks and micro-batches the losses add up
        to the mean over the step's tokens. A mean over nothing is NaN: use the sum where a rank may have no loss.

        Args:
            micro_batch: which.
            reduction: "mean": the loss is the (weighted) mean over the micro-batch's loss tokens, as Transformers
                models return it; "sum": it is their (weighted) sum.
            gradients_are_averaged: over ranks, as DDP and FSDP do.
        """
        factor = gradient_scale(self.ranks) if gradients_are_averaged else 1.0
        weight = self.loss_weights[micro_batch] if reduction == "mean" else 1.0
        return factor * weight / self.denominator
