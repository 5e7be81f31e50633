"""What each layer of a model costs and keeps, from its architecture and a device, for one micro-batch of a pipeline.

Every layer of a kind costs alike, except windowed ones. Matrix products and attention are counted as in
``cost.flops``; embeddings, norms and the loss are not, so that an embedding takes next to no time. Logits are not kept,
as losses in use compute them in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import Architecture, LanguageArchitecture, VisionArchitecture
from trimtab.cost.cluster import Link
from trimtab.cost.device import DeviceSpeed, share_at
from trimtab.cost.flops import (
    FORWARD,
    TRAIN,
    language_layer_params,
    vision_frame_attention_flops,
    vision_patch_params,
)
from trimtab.cost.memory import layer_bytes_per_token, vision_bytes_per_patch
from trimtab.errors import MetadataError, SettingsError
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.stages import LayerKind, LayerProfile, LayerSpread

TILE_SIDE = 32  # patches; a tile of 448 pixels
_BF16 = 2
_WEIGHT_AND_GRADIENT = 4
_OPTIMIZER = 12  # fp32 master weight and two Adam moments, as in ZeRO, arXiv 1910.02054
_NS = 1e9
_MOST_LAYERS = 10_000
_ATTENTION_BACKWARD = TRAIN.attention - FORWARD.attention
_LINEAR_BACKWARD = TRAIN.linear - FORWARD.linear


@dataclass(frozen=True, eq=False, kw_only=True)
class MicroBatch:
    """The sizes of a micro-batch.

    Attributes:
        lengths: int64 [N], tokens of its sequences, visual ones included; attention stays within a sequence.
        frames: int64 [F, 2], height and width in patches of every image or temporal patch.
    """

    lengths: NDArray[np.int64]
    frames: NDArray[np.int64]

    @staticmethod
    def of_pack(tokens: int, tiles: int) -> MicroBatch:
        """One sequence of ``tokens`` and ``tiles`` images of 32 x 32 patches, as a pack at its caps."""
        return MicroBatch(
            lengths=np.array([tokens], dtype=np.int64), frames=np.full((tiles, 2), TILE_SIDE, dtype=np.int64)
        )

    @staticmethod
    def of_batch(batch: BatchMetadata) -> MicroBatch:
        """The samples of a batch."""
        return MicroBatch(lengths=batch.tokens, frames=np.repeat(batch.grid_thw[:, 1:], batch.grid_thw[:, 0], axis=0))

    @property
    def tokens(self) -> int:
        """Of all its sequences."""
        return int(self.lengths.sum())

    @property
    def patches(self) -> int:
        """Of all its frames."""
        return int(self.frames.prod(axis=1).sum())


@dataclass(kw_only=True)
class _Row:
    """One layer: seconds, bytes and parameters."""

    name: str
    kind: LayerKind
    parameters: int
    linear: float = 0.0
    attention: float = 0.0
    kept: int = 0
    received: int = 0
    sent: int = 0


def layer_profile(
    architecture: Architecture,
    device: DeviceSpeed,
    micro_batch: MicroBatch,
    link: Link,
    *,
    optimizer_shards: int = 1,
    spread: Sequence[MicroBatch] = (),
) -> LayerProfile:
    """Profile a model from its architecture.

    Args:
        architecture: the model.
        device: its speed.
        micro_batch: the one to plan for, the largest.
        link: joins neighbouring stages; a rank sends at its all-to-all bandwidth.
        optimizer_shards: data-parallel ranks that share a stage's optimizer state; weights and gradients stay whole.
        spread: recorded micro-batches, for how times vary.

    Raises:
        MetadataError: the micro-batch cannot be of this model.
        SettingsError: ``optimizer_shards`` is below 1.
    """
    if optimizer_shards < 1:
        raise SettingsError(f"optimizer_shards={optimizer_shards} must be at least 1")
    rows = _rows(architecture, device, micro_batch)
    forward, backward = _times(rows)
    kept = np.array([row.received + row.kept for row in rows], dtype=np.int64)
    parameters = np.array([row.parameters for row in rows], dtype=np.int64)
    sent = np.array([row.sent for row in rows], dtype=np.int64)
    state = parameters * _WEIGHT_AND_GRADIENT + -(-parameters * _OPTIMIZER // optimizer_shards)
    recomputes = np.array([row.kept > 0 for row in rows])
    return LayerProfile(
        names=tuple(row.name for row in rows),
        kinds=tuple(row.kind for row in rows),
        forward_ns=np.maximum(forward, 1),
        backward_ns=backward,
        recompute_ns=np.where(recomputes, np.maximum(forward, 1), 0),
        activation_bytes=kept,
        recomputed_bytes=np.array([row.received for row in rows], dtype=np.int64),
        workspace_bytes=np.zeros(len(rows), dtype=np.int64),
        parameters=parameters,
        state_bytes=state,
        boundary_bytes=sent,
        boundary_ns=np.rint((link.latency + sent / link.all_to_all) * _NS).astype(np.int64),
        spread=_spread(architecture, device, spread),
    )


def _spread(architecture: Architecture, device: DeviceSpeed, recorded: Sequence[MicroBatch]) -> LayerSpread | None:
    if not recorded:
        return None
    times = [_times(_rows(architecture, device, each)) for each in recorded]
    return LayerSpread(
        forward_ns=np.stack([forward for forward, _ in times]),
        backward_ns=np.stack([backward for _, backward in times]),
    )


def _times(rows: Sequence[_Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [L] each, forward and backward."""
    linear = np.array([row.linear for row in rows])
    attention = np.array([row.attention for row in rows])
    backward = linear * _LINEAR_BACKWARD + attention * _ATTENTION_BACKWARD
    return np.rint((linear + attention) * _NS).astype(np.int64), np.rint(backward * _NS).astype(np.int64)


def _rows(architecture: Architecture, device: DeviceSpeed, micro_batch: MicroBatch) -> list[_Row]:
    language, vision = architecture.language, architecture.vision
    if micro_batch.tokens < 1:
        raise MetadataError("a micro-batch needs at least 1 token")
    if vision is None and len(micro_batch.frames):
        raise MetadataError(
            f"{architecture.name} has no vision encoder, but the micro-batch has images; leave them out"
        )
    layers = language.layers + (0 if vision is None else vision.depth)
    if layers > _MOST_LAYERS:
        raise MetadataError(f"{architecture.name} has {layers} layers, more than the {_MOST_LAYERS} a profile may have")
    rows = [] if vision is None else _vision_rows(vision, language, device, micro_batch)
    return [*rows, *_language_rows(language, vision, device, micro_batch)]


def _vision_rows(
    vision: VisionArchitecture, language: LanguageArchitecture, device: DeviceSpeed, micro_batch: MicroBatch
) -> list[_Row]:
    """Patch embedding, encoder layers, projector. Features for later language layers travel along (deepstack)."""
    merged = micro_batch.patches // vision.merge**2
    if merged > micro_batch.tokens:
        raise MetadataError(
            f"the micro-batch's {len(micro_batch.frames)} images are {merged} tokens of the language model, more than "
            f"its {micro_batch.tokens} tokens; use at least {merged} tokens or fewer images"
        )
    inside = micro_batch.patches + vision.extra_tokens * len(micro_batch.frames)
    width = _BF16 * vision.width * inside
    speed = device.flops * device.vision_gemm_share
    embedding = 3 * vision.temporal_patch * vision.patch**2
    pixels = _BF16 * embedding * micro_batch.patches
    rows = [
        _Row(
            name="vision.embedding",
            kind="embedding",
            parameters=embedding * vision.width,
            linear=2.0 * embedding * vision.width * micro_batch.patches / speed,
            received=pixels,
            sent=width,
        )
    ]
    block = vision_patch_params(replace(vision, depth=1))
    kept = vision_bytes_per_patch(replace(vision, depth=1), recompute=False) * inside
    whole, windowed = _vision_attention(vision, device, micro_batch.frames)
    for layer in range(vision.depth):
        full = not vision.window or layer in vision.full_layers
        rows.append(
            _Row(
                name=f"vision.{layer}",
                kind="vision",
                parameters=block,
                linear=2.0 * block * inside / speed,
                attention=whole if full else windowed,
                received=width,
                kept=max(0, kept - width),
                sent=width,
            )
        )
    projector = sum(rows_ * columns for rows_, columns in vision.projector)
    uses = micro_batch.patches / vision.projector_patches
    features = _BF16 * merged * language.hidden
    rows.append(
        _Row(
            name="projector",
            kind="projector",
            parameters=projector,
            linear=2.0 * projector * uses / speed,
            received=width,
            kept=int(_BF16 * uses * sum(inner + outer for inner, outer in vision.projector)),
            sent=features,
        )
    )
    for deep in vision.deepstack:
        for row in rows[deep + 1 :]:
            row.sent += features
    return rows


def _vision_attention(
    vision: VisionArchitecture, device: DeviceSpeed, frames: NDArray[np.int64]
) -> tuple[float, float]:
    """Seconds of one whole-frame layer's and one windowed layer's forward attention."""
    if not len(frames):
        return 0.0, 0.0
    whole, _ = vision_frame_attention_flops(replace(vision, depth=1, window=0), frames)
    _, windowed = vision_frame_attention_flops(replace(vision, depth=1, full_layers=()), frames)
    shares = share_at(device.vision_attention_share, frames.prod(axis=1) + vision.extra_tokens)
    return (
        float((whole / shares).sum() / device.flops),
        float(windowed.sum() / device.window_attention_share / device.flops),
    )


def _language_rows(
    language: LanguageArchitecture, vision: VisionArchitecture | None, device: DeviceSpeed, micro_batch: MicroBatch
) -> list[_Row]:
    """Token embedding, decoder layers, head. Experts come after the dense layers. Tied weights are on both ends."""
    tokens = micro_batch.tokens
    hidden = _BF16 * language.hidden * tokens
    vocabulary = language.hidden * language.vocab
    speed = device.flops * device.gemm_share
    squared = 2.0 * language.heads * language.head_dim * np.square(micro_batch.lengths.astype(np.float64))
    attention = float((squared / share_at(device.attention_share, micro_batch.lengths)).sum() / device.flops)
    deepstack = () if vision is None else vision.deepstack
    features = 0 if vision is None else _BF16 * (micro_batch.patches // vision.merge**2) * language.hidden
    images = 0 if vision is None else features
    rows = [
        _Row(
            name="language.embedding",
            kind="embedding",
            parameters=vocabulary,
            received=images,
            sent=hidden + features * len(deepstack),
        )
    ]
    for layer in range(language.layers):
        dense = language.experts == 0 or layer < language.dense_layers
        active = language_layer_params(language, active=True, dense=dense)
        rows.append(
            _Row(
                name=f"language.{layer}",
                kind="language",
                parameters=language_layer_params(language, active=False, dense=dense),
                linear=2.0 * active * tokens / speed,
                attention=attention,
                received=hidden,
                kept=layer_bytes_per_token(language) * tokens - hidden,
                sent=hidden + features * max(0, len(deepstack) - layer - 1),
            )
        )
    rows.append(
        _Row(
            name="head",
            kind="head",
            parameters=vocabulary,
            linear=2.0 * vocabulary * tokens / speed,
            received=hidden,
        )
    )
    return rows
