"""Joins a processor's samples into one micro-batch of a pipeline, for training loops of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.loader.pack_batches import IGNORED_LABEL
from trimtab.loader.pack_collate import VISUALS, PackCollator, Sample
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.routes import LocalRoute


class PipelineCollator:
    """``DataLoader(..., collate_fn=PipelineCollator(model))``: a pack's samples -> a micro-batch of ``PipelinedVLM``.

    Samples are those ``PackCollator`` takes. Make it from the whole model, before that is cut; give every rank of a
    pipeline the same samples.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Collate for ``model``.

        Raises:
            SettingsError: the model has no vision tower.
        """
        config: Any = model.config
        self._join = PackCollator(model)
        self._image, self._video = config.image_token_id, config.video_token_id
        self._merge = config.vision_config.spatial_merge_size

    def __call__(self, samples: Sequence[Sample]) -> PackedBatch:
        """Join the samples of one micro-batch.

        Raises:
            LoaderError: as ``PackCollator``.
        """
        joined = self._join(samples)
        ids, targets = joined["input_ids"][0], joined["labels"][0, 1:]
        pixels = [joined[name] for name, _ in VISUALS if name in joined]
        grids = [joined[name] for _, name in VISUALS if name in joined]
        positions = torch.nonzero(targets != IGNORED_LABEL).flatten()
        lengths = torch.tensor(joined["packed_lengths"])
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[positions]
        of_visuals = ids[(ids == self._image) | (ids == self._video)]
        return PackedBatch(
            input_ids=joined["input_ids"],
            position_ids=joined["position_ids"],
            packed_lengths=joined["packed_lengths"],
            sequence_groups=(),
            loss_positions=positions,
            targets=targets[positions],
            loss_weights=torch.ones(len(positions)),
            loss_rows=rows,
            loss_places=_places(rows),
            pixel_values=torch.cat(pixels),
            unit_grid_thw=torch.cat(grids),
            visual_is_video=of_visuals == self._video,
            visual_route=self._route(of_visuals, grids),
        )

    def _route(self, of_visuals: Tensor, grids: Sequence[Tensor]) -> LocalRoute:
        """The encoder's rows, images first and then videos, to their placeholders, which follow the samples' order."""
        rows = sum(int((grid.prod(dim=1) // self._merge**2).sum()) for grid in grids)
        belongs = [torch.nonzero(of_visuals == token).flatten().numpy() for token in (self._image, self._video)]
        return LocalRoute(
            send_rows=np.arange(rows),
            send_splits=(rows,),
            receive_splits=(rows,),
            receive_rows=np.concatenate(belongs),
            result_rows=rows,
        )


def _places(rows: Tensor) -> Tensor:
    """Place of each loss token among those of its sample."""
    first = torch.searchsorted(rows, rows)
    return torch.arange(len(rows)) - first
