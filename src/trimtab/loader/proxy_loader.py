"""The controller's dataloader: yields metadata and placeholders where ``DataLoader`` would yield tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab.errors import MetadataError
from trimtab.loader.proxy_batch import ProxyBatch
from trimtab.loader.sampler import StepSampler
from trimtab.schema.setting_checks import check_whole
from trimtab.schema.table import MetadataTable


class ProxyDataLoader:
    """Stands in for torchdata's ``StatefulDataLoader``: iteration, ``len``, ``state_dict`` and ``load_state_dict``.

    Each ``iter`` begins the next epoch, but the first after ``load_state_dict``, which finishes the epoch that was
    under way. The state counts batches handed out.
    """

    def __init__(self, table: MetadataTable, *, batch_size: int, seed: int = 0) -> None:
        """Deal batches of a scanned table.

        Args:
            table: from ``read_table``; it must name the geometry it was made for.
            batch_size: samples in a batch; the last of an epoch may be smaller.
            seed: of the order of samples.

        Raises:
            MetadataError: the table names no geometry.
            SettingsError: the table is smaller than one batch, or ``batch_size`` is no whole number of at least 1.
        """
        if table.geometry is None:
            raise MetadataError("the table names no geometry, so shapes are not known; make it with `trimtab scan`")
        self._table, self._patch_values = table, table.geometry.patch_values
        check_whole("batch_size", batch_size, 1)
        self._sampler = StepSampler(num_samples=len(table), samples_per_step=batch_size, seed=seed)
        self._resuming = False

    def __len__(self) -> int:
        return self._sampler.steps_per_epoch

    def __iter__(self) -> Iterator[ProxyBatch]:
        broken_off = self._sampler.next_step % len(self) and not self._resuming
        epoch = self._sampler.next_step // len(self) + bool(broken_off)
        if broken_off:
            self._sampler.consumed(epoch * len(self) - 1)
        self._resuming = False
        while (step := self._sampler.next_step) // len(self) == epoch:
            self._sampler.consumed(step)
            yield self._batch(step)

    def state_dict(self) -> dict[str, Any]:
        """What was handed out; small whatever the dataset."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind what was handed out.

        Raises:
            CheckpointError: it is no state of such a loader, or made with another dataset size, batch size or seed.
        """
        self._sampler.load_state_dict(state)
        self._resuming = True

    def _batch(self, step: int) -> ProxyBatch:
        rows = self._sampler.rows(step)
        return ProxyBatch(
            step=step,
            table=self._table.digest,
            rows=rows,
            reply=np.zeros(len(rows), dtype=np.int64),
            metadata=self._table.batch(rows),
            patch_values=self._patch_values,
        )
