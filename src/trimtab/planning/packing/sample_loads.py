"""What each sample loads a device with, and what packs and padded batches of samples do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.problem import PackProblem
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

PATCHES_PER_TILE = 1024
"""A tile of InternVL: 448 pixels a side, patches of 14."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleLoads:
    """Loads of N samples.

    Attributes:
        patches: int64 [N], patches of all visuals, before merging.
        tokens: int64 [N], language-model tokens, text and visual.
        vision_ns, language_ns: int64 [N], predicted time of the two towers; None where no model is known.
    """

    patches: NDArray[np.int64]
    tokens: NDArray[np.int64]
    vision_ns: NDArray[np.int64] | None = None
    language_ns: NDArray[np.int64] | None = None

    @staticmethod
    def from_batch(batch: BatchMetadata, costs: Costs | None) -> SampleLoads:
        """The loads of a batch's samples; ``costs`` are those of the same batch."""
        patches = np.zeros(len(batch), dtype=np.int64)
        np.add.at(patches, batch.sample_of_visual, batch.patches)
        if costs is None:
            return SampleLoads(patches=patches, tokens=batch.tokens)
        vision_ns = np.zeros(len(batch), dtype=np.int64)
        np.add.at(vision_ns, batch.sample_of_visual, costs.vision_frame_ns * batch.grid_thw[:, 0])
        return SampleLoads(patches=patches, tokens=batch.tokens, vision_ns=vision_ns, language_ns=costs.language_ns)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def cost_ns(self) -> NDArray[np.int64] | None:
        """int64 [N], time of both towers."""
        if self.vision_ns is None or self.language_ns is None:
            return None
        return self.vision_ns + self.language_ns

    def take(self, rows: NDArray[np.int64]) -> SampleLoads:
        """The loads of some rows, in that order."""
        return SampleLoads(
            patches=self.patches[rows],
            tokens=self.tokens[rows],
            vision_ns=None if self.vision_ns is None else self.vision_ns[rows],
            language_ns=None if self.language_ns is None else self.language_ns[rows],
        )

    def problem(
        self, *, patches: int | None, tokens: int | None, cost_ns: int | None = None, samples: int | None = None
    ) -> PackProblem:
        """The packing problem under these caps; loads without a cap, the cost for one, still match packs over ranks.

        ``samples`` caps how many samples a pack holds, which keeps the number of samples of a step from varying with
        their size.

        Raises:
            SettingsError: no cap is set, or one is below 1, or the cost is capped and no model is known.
        """
        columns = {"patches": self.patches}
        if samples is not None:
            columns["samples"] = np.ones_like(self.patches)
        if self.cost_ns is not None:
            columns["cost_ns"] = self.cost_ns
        columns["tokens"] = self.tokens  # last, where ISF looks for them
        caps = {"patches": patches, "samples": samples, "cost_ns": cost_ns, "tokens": tokens}
        return PackProblem.from_columns(columns, {name: cap for name, cap in caps.items() if cap is not None})

    def of_packs(self, packs: Packs) -> DeviceLoads:
        """What each pack loads its device with: samples side by side, attention within each."""
        return DeviceLoads(
            vision=packs.sums(self.patches),
            language=packs.sums(self.tokens),
            vision_ns=None if self.vision_ns is None else packs.sums(self.vision_ns),
            language_ns=None if self.language_ns is None else packs.sums(self.language_ns),
        )

    def of_padded(self, batches: Packs) -> DeviceLoads:
        """What each padded batch loads its device with: the language model sees all samples as long as the longest."""

        def padded(load: NDArray[np.int64]) -> NDArray[np.int64]:
            return batches.largest(load) * batches.counts

        return DeviceLoads(
            vision=batches.sums(self.patches),
            language=padded(self.tokens),
            vision_ns=None if self.vision_ns is None else batches.sums(self.vision_ns),
            language_ns=None if self.language_ns is None else padded(self.language_ns),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceLoads:
    """Loads of P packs or batches, each run by one device at a time.

    Attributes:
        vision: int64 [P], patches.
        language: int64 [P], tokens, padding included.
        vision_ns, language_ns: int64 [P], predicted time; None where no model is known.
    """

    vision: NDArray[np.int64]
    language: NDArray[np.int64]
    vision_ns: NDArray[np.int64] | None
    language_ns: NDArray[np.int64] | None

    @property
    def cost(self) -> NDArray[np.int64] | None:
        """int64 [P], predicted nanoseconds of both towers."""
        if self.vision_ns is None or self.language_ns is None:
            return None
        return self.vision_ns + self.language_ns

    @property
    def work(self) -> NDArray[np.int64]:
        """int64 [P], the best known stand-in for time: predicted nanoseconds, or tokens."""
        return self.language if self.cost is None else self.cost

    def columns(self) -> NDArray[np.int64]:
        """int64 [P, 2 or 3]: vision, language and, where known, cost; packs are matched by these."""
        known = [self.vision, self.language] if self.cost is None else [self.vision, self.language, self.cost]
        return np.stack(known, axis=1)
