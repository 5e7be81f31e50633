"""Floating-point operations of a model, counted as matrix multiplications (2 per multiply-add).

Attention is counted as the useful work: causal l^2 / 2 in the language model, the frame (or its windows) in
the vision encoder. Elementwise work is left out, as torch's FLOP counter leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import LanguageArchitecture, VisionArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often the forward's operations are paid.

    Attributes:
        linear: times the forward's matrix products: 1 forward, 3 with backward, 4 with recomputation.
        attention: times the forward's attention. Its backward is 2.5 forwards, as kernels that do not keep the
            scores recompute them: five products against two (FlashAttention, arXiv 2205.14135, appendix B).
        exchanges: times the forward's exchanges between ranks: 1 forward, 2 with backward, 3 with recomputation.
    """

    linear: float
    attention: float
    exchanges: int


FORWARD = Passes(linear=1.0, attention=1.0, exchanges=1)
TRAIN = Passes(linear=3.0, attention=3.5, exchanges=2)
TRAIN_RECOMPUTE = Passes(linear=4.0, attention=4.5, exchanges=3)


def language_layer_params(language: LanguageArchitecture, *, active: bool, dense: bool) -> int:
    """Matrix elements of one decoder layer; ``active`` counts only the experts one token visits."""
    attention = language.hidden * language.head_dim * (2 * language.heads + 2 * language.kv_heads)
    if dense or language.experts == 0:
        return attention + 3 * language.hidden * language.ffn
    experts = language.experts_per_token if active else language.experts
    routed = 3 * language.hidden * language.expert_ffn * experts
    shared = 3 * language.hidden * language.shared_expert_ffn
    return attention + routed + shared + language.hidden * language.experts


def language_params(language: LanguageArchitecture, *, active: bool) -> int:
    """Matrix elements of all decoder layers; embeddings and norms are left out."""
    dense_layers = language.layers if language.experts == 0 else language.dense_layers
    dense = language_layer_params(language, active=active, dense=True) * dense_layers
    sparse = language_layer_params(language, active=active, dense=False) * (language.layers - dense_layers)
    return dense + sparse


def language_linear_flops(language: LanguageArchitecture) -> int:
    """Forward operations per token outside attention, output head included."""
    return 2 * (language_params(language, active=True) + language.hidden * language.vocab)


def language_attention_flops(language: LanguageArchitecture) -> int:
    """Forward operations per squared token: two products over l^2 / 2 pairs in every layer."""
    return 2 * language.layers * language.heads * language.head_dim


def vision_patch_params(vision: VisionArchitecture) -> int:
    """Matrix elements applied to every patch in the encoder's layers."""
    return vision.depth * (4 * vision.width**2 + (3 if vision.gated else 2) * vision.width * vision.mlp)


def vision_frame_linear_flops(vision: VisionArchitecture, grids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Forward operations outside attention of one temporal patch of each visual.

    Args:
        vision: the encoder.
        grids: int64 [V, 2], height and width in patches.

    Returns:
        float64 [V].
    """
    embedding = 3 * vision.temporal_patch * vision.patch**2 * vision.width
    projector = sum(rows * columns for rows, columns in vision.projector) / vision.projector_patches
    blocks = vision_patch_params(vision)
    patches = grids[:, 0] * grids[:, 1]
    per_patch, per_frame = 2.0 * (embedding + blocks + projector), 2.0 * blocks * vision.extra_tokens
    return np.asarray(per_patch * patches + per_frame, dtype=np.float64)


def vision_frame_attention_flops(
    vision: VisionArchitecture, grids: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forward attention of one temporal patch of each visual.

    Args:
        vision: the encoder.
        grids: int64 [V, 2], height and width in patches.

    Returns:
        float64 [V] of the layers that see the whole frame, and float64 [V] of the windowed layers.
    """
    height, width = np.ascontiguousarray(grids.T)
    full_layers = len(vision.full_layers) if vision.window else vision.depth
    pairs = np.square(height * width + vision.extra_tokens).astype(np.float64)
    full = 4.0 * vision.width * full_layers * pairs
    if not vision.window:
        return full, np.zeros_like(full)
    pairs = (_squared_cuts(height, vision.window) * _squared_cuts(width, vision.window)).astype(np.float64)
    return full, 4.0 * vision.width * (vision.depth - full_layers) * pairs


def _squared_cuts(sides: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Sum of squares of the pieces a side falls into when cut every ``window`` patches."""
    whole = sides // window
    rest = sides - whole * window
    squares: NDArray[np.int64] = whole * window**2 + rest * rest
    return squares
