"""Device memory of a model in training: what it keeps, and what each token adds."""

from __future__ import annotations

from trimtab.cost.architecture import Architecture, LanguageArchitecture, VisionArchitecture
from trimtab.cost.flops import language_params, vision_patch_params

# bf16 weights and gradients, fp32 master weights and two Adam moments (Rajbhandari et al., ZeRO, arXiv 1910.02054).
STATE_BYTES_PER_PARAM = 16
_BF16 = 2
_FP32 = 4


def parameters(architecture: Architecture) -> int:
    """Weights of the model; norms and biases, under 0.1 %, are left out."""
    language = architecture.language
    embeddings = language.hidden * language.vocab * (1 if language.tied else 2)
    vision = 0 if architecture.vision is None else vision_parameters(architecture.vision)
    return language_params(language, active=False) + embeddings + vision


def vision_parameters(vision: VisionArchitecture) -> int:
    """Weights of the encoder and its projector."""
    embedding = 3 * vision.temporal_patch * vision.patch**2 * vision.width
    return embedding + vision_patch_params(vision) + sum(rows * columns for rows, columns in vision.projector)


def state_bytes(architecture: Architecture, shards: int) -> float:
    """Weights, gradients and optimizer state on one rank when fully sharded over ``shards``."""
    return parameters(architecture) * STATE_BYTES_PER_PARAM / shards


def layer_bytes_per_token(language: LanguageArchitecture) -> int:
    """What autograd keeps of one decoder layer for one token in bf16, attention scores not kept.

    Two norm inputs and outputs, rotated and unrotated queries and keys, values, attention's output and its
    log-sum-exp, and the gated feed-forward's four intermediate rows.
    """
    queries = language.heads * language.head_dim
    keys = language.kv_heads * language.head_dim
    width = language.expert_ffn * language.experts_per_token if language.experts else language.ffn
    values = 4 * language.hidden + 2 * queries + 3 * keys + queries + 4 * (width + language.shared_expert_ffn)
    return _BF16 * values + _FP32 * language.heads


def language_bytes_per_token(language: LanguageArchitecture, *, recompute: bool) -> int:
    """Activations of one token over all layers.

    With recomputation of whole layers: one row kept a layer, plus the layer being recomputed. Logits are left out, as
    losses in use compute them in chunks.
    """
    layer = layer_bytes_per_token(language)
    if not recompute:
        return layer * language.layers
    return _BF16 * language.hidden * language.layers + layer


def vision_bytes_per_patch(vision: VisionArchitecture, *, recompute: bool) -> int:
    """Activations of one patch in the encoder."""
    layer = _BF16 * (8 * vision.width + (4 if vision.gated else 2) * vision.mlp) + _FP32 * vision.heads
    return layer * vision.depth if not recompute else _BF16 * vision.width * vision.depth + layer


def kept_bytes_sharded(architecture: Architecture, shards: int) -> float:
    """What a rank holds beside activations, fully sharded: its share of the state, and two layers gathered at a time.

    On one rank nothing is gathered.
    """
    language = architecture.language
    gathered = 2 * _BF16 * language_params(language, active=False) / language.layers
    return state_bytes(architecture, shards) + (gathered if shards > 1 else 0.0)


def bytes_per_token(architecture: Architecture, *, recompute: bool) -> int:
    """Activations of one token, taken as visual where there is vision."""
    language, vision = architecture.language, architecture.vision
    of_vision = 0 if vision is None else vision.merge**2 * vision_bytes_per_patch(vision, recompute=recompute)
    return language_bytes_per_token(language, recompute=recompute) + of_vision


def largest_micro_batch(
    architecture: Architecture, device_memory: float, shards: int, *, recompute: bool, reserve: float = 0.1
) -> int:
    """Tokens of a micro-batch in bf16 that fit beside the model's state, all taken as visual where there is vision.

    Args:
        architecture: the model, fully sharded.
        device_memory: bytes of one device.
        shards: ranks that share the state.
        recompute: whole layers are recomputed in the backward.
        reserve: share of the memory left to the allocator and communication buffers.

    Returns:
        Tokens, 0 where not even the state fits.
    """
    free = device_memory * (1 - reserve) - kept_bytes_sharded(architecture, shards)
    return max(0, int(free // bytes_per_token(architecture, recompute=recompute)))
