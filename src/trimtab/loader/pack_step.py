"""The packs of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs


@dataclass(frozen=True, eq=False, kw_only=True)
class PackStep:
    """Samples of a step: one pack in every slot, a slot being a micro-batch of a rank.

    Attributes:
        packs: packs of table rows; slot s is micro-batch ``s // ranks`` of rank ``s % ranks``.
        zero_loss: bool [slots], padding packs: copies that run with loss weight 0 so that ranks stay in step.
        ranks: R.
    """

    packs: Packs
    zero_loss: NDArray[np.bool_]
    ranks: int

    @property
    def micro_batches(self) -> int:
        """Packs each rank runs."""
        return len(self.packs) // self.ranks

    @property
    def rows(self) -> NDArray[np.int64]:
        """int64, rows trained on, slot by slot; those of padding packs are left out."""
        return self.packs.rows[~self.zero_loss.repeat(self.packs.counts)]

    @property
    def slots(self) -> NDArray[np.int64]:
        """int64, slot of each of ``rows``."""
        slots = np.arange(len(self.packs), dtype=np.int64).repeat(self.packs.counts)
        return slots[~self.zero_loss[slots]]

    def pack(self, rank: int, micro_batch: int) -> NDArray[np.int64]:
        """int64, rows of one pack, padding or not."""
        return self.packs[micro_batch * self.ranks + rank]

    def is_padding(self, rank: int, micro_batch: int) -> bool:
        """Whether that pack runs with loss weight 0."""
        return bool(self.zero_loss[micro_batch * self.ranks + rank])
