"""Packed variable-length causal attention for the language model, registered under a name of its own.

Transformers' ``AttentionInterface`` lets a model choose its attention by name, so no model code is replaced. The
segment bounds arrive as the forward keyword ``packed_lengths``; samples of one pack never see each other, and the work
is sum(l^2), not (sum l)^2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from trimtab.errors import SettingsError

PACKED_ATTENTION = "trimtab_packed"


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make the language model attend within ``packed_lengths``; the vision tower keeps its own attention.

    Raises:
        SettingsError: the model has no separate language configuration.
    """
    if "text_config" not in getattr(model.config, "sub_configs", {}):
        raise SettingsError(f"{type(model).__name__} has no text_config; use a vision-language model")
    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
    model.set_attn_implementation({"text_config": PACKED_ATTENTION})


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_lengths: tuple[int, ...] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of a pack.

    Args:
        module: the attention layer; unused.
        query: [1, Hq, L, D], after rotary embedding.
        key: [1, Hkv, L, D], not repeated.
        value: [1, Hkv, L, D].
        attention_mask: always None, since the segments say who sees whom.
        scaling: softmax scale.
        dropout: attention dropout probability.
        packed_lengths: segment lengths, summing to L.

    Returns:
        [1, L, Hq, D] and None (no attention weights).

    Raises:
        ValueError: the lengths are missing or do not sum to L.
    """
    length = query.shape[2]
    if packed_lengths is None or sum(packed_lengths) != length:
        raise ValueError(f"packed_lengths {packed_lengths} must sum to the sequence length {length}")
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped)
        for q, k, v in zip(*(part.split(packed_lengths, dim=2) for part in (query, key, value)), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    return None
