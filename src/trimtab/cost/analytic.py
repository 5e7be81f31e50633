"""Costs of a batch from the model's architecture and a device's speed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import Architecture, LanguageArchitecture, VisionArchitecture
from trimtab.cost.device import DeviceSpeed, share_at
from trimtab.cost.flops import (
    TRAIN,
    Passes,
    language_attention_flops,
    language_linear_flops,
    vision_frame_attention_flops,
    vision_frame_linear_flops,
)
from trimtab.errors import MetadataError
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata

_NS = 1e9
# From so many visuals on, sizes repeat: a cost for each distinct one is faster, by a table of at most so many cells.
_MANY_GRIDS = 1024
_MOST_CELLS = 1 << 16


def analytic_costs(
    batch: BatchMetadata,
    architecture: Architecture,
    device: DeviceSpeed,
    *,
    language_passes: Passes = TRAIN,
    vision_passes: Passes = TRAIN,
) -> Costs:
    """Predicted time of each sample and visual on one device.

    Args:
        batch: N samples, V visuals.
        architecture: the model.
        device: its speed; only ratios matter to a plan.
        language_passes: ``FORWARD`` for inference, ``TRAIN_RECOMPUTE`` where every layer is recomputed in the backward.
        vision_passes: the same of the encoder; ``FORWARD`` where it is frozen.

    Returns:
        Costs in whole nanoseconds. A sample's language cost covers its text and visual tokens.

    Raises:
        MetadataError: the batch has visuals and the model no vision encoder.
    """
    if architecture.vision is None and batch.num_visuals:
        sample = batch.sample_ids[int(batch.sample_of_visual[0])]
        raise MetadataError(f"sample {sample}: has visuals, but {architecture.name} has no vision encoder")
    vision_ns = np.zeros(0, dtype=np.int64)
    if architecture.vision is not None and batch.num_visuals:
        vision_ns = vision_frame_ns(batch.grid_thw[:, 1:], architecture.vision, device, vision_passes)
    return Costs(
        language_ns=language_ns(batch.tokens, architecture.language, device, language_passes),
        vision_frame_ns=vision_ns,
        legal_degrees=architecture.language.legal_degrees(architecture.language.heads),
    )


def language_ns(
    tokens: NDArray[np.int64], language: LanguageArchitecture, device: DeviceSpeed, passes: Passes = TRAIN
) -> NDArray[np.int64]:
    """int64 [N], time of the language model on sequences of ``tokens`` (int64 [N])."""
    length = tokens.astype(np.float64)
    linear = length * (language_linear_flops(language) * passes.linear / device.gemm_share)
    attention = length * length * (language_attention_flops(language) * passes.attention)
    attention /= share_at(device.attention_share, tokens)
    return _whole_ns((linear + attention) / device.flops)


def vision_frame_ns(
    grids: NDArray[np.int64], vision: VisionArchitecture, device: DeviceSpeed, passes: Passes = TRAIN
) -> NDArray[np.int64]:
    """int64 [V], time of the encoder and projector on one temporal patch of ``grids`` (int64 [V, 2], patches)."""
    if len(grids) < _MANY_GRIDS:
        return _frame_ns(grids, vision, device, passes)
    distinct, which = _distinct(grids)
    return _frame_ns(distinct, vision, device, passes)[which]


def _frame_ns(
    grids: NDArray[np.int64], vision: VisionArchitecture, device: DeviceSpeed, passes: Passes
) -> NDArray[np.int64]:
    linear = vision_frame_linear_flops(vision, grids) * (passes.linear / device.vision_gemm_share)
    full, windowed = vision_frame_attention_flops(vision, grids)
    shares = share_at(device.vision_attention_share, grids[:, 0] * grids[:, 1] + vision.extra_tokens)
    attention = passes.attention * (full / shares + windowed / device.window_attention_share)
    return _whole_ns((linear + attention) / device.flops)


def _distinct(grids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | slice]:
    """The distinct grids, and which of them each one is; all of them where they are too large for a table."""
    columns = int(grids[:, 1].max()) + 1
    key = grids[:, 0] * columns + grids[:, 1]
    cells = int(key.max()) + 1
    if cells > _MOST_CELLS:
        return grids, slice(None)
    position = np.zeros(cells, dtype=np.int64)
    position[key] = 1
    (found,) = position.nonzero()
    position[found] = np.arange(len(found))
    return np.stack(np.divmod(found, columns), axis=1), position[key]


def _whole_ns(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * _NS).astype(np.int64)
