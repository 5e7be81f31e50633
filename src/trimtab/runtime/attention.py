"""Packed variable-length causal attention for the language model, registered under a name of its own.

Transformers' ``AttentionInterface`` lets a model choose its attention by name, so no model code is replaced. The
segment bounds arrive as the forward keyword ``packed_lengths``; samples of one pack never see each other, and the work
is sum(l^2), not (sum l)^2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from trimtab.errors import SettingsError
from trimtab.runtime.ulysses import ShardedSequences, sharded_attention
from trimtab.runtime.varlen import varlen_attention

PACKED_ATTENTION = "trimtab_packed"
_STOCK_ATTENTION = "sdpa"


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make the language model attend within ``packed_lengths``; the vision tower keeps its own attention.

    Raises:
        SettingsError: the model has parts beside a language model, but no separate language configuration.
    """
    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
    _set_language_attention(model, PACKED_ATTENTION)


@contextmanager
def stock_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the language model attends as Transformers has it, for batches that are no packs: ``model.generate``."""
    _set_language_attention(model, _STOCK_ATTENTION)
    try:
        yield
    finally:
        use_packed_attention(model)


def _set_language_attention(model: PreTrainedModel, name: str) -> None:
    parts = getattr(model.config, "sub_configs", {})
    if parts and "text_config" not in parts:
        raise SettingsError(f"{type(model).__name__} has no text_config; use a vision-language or a text model")
    model.set_attn_implementation({"text_config": name} if parts else name)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_lengths: tuple[int, ...] | None = None,
    sharded_sequences: ShardedSequences | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of a pack, some of them shared with other ranks.

    Args:
        module: the attention layer; unused.
        query: [1, Hq, L, D], after rotary embedding.
        key: [1, Hkv, L, D], not repeated.
        value: [1, Hkv, L, D].
        attention_mask: always None, since the segments say who sees whom.
        scaling: softmax scale.
        dropout: attention dropout probability.
        packed_lengths: lengths of the segments this rank holds alone, which end the pack.
        sharded_sequences: those it shares with others, which begin it.

    Returns:
        [1, L, Hq, D] and None (no attention weights).

    Raises:
        ValueError: the lengths are missing, or do not sum to L together with the tokens held of shared sequences.
    """
    length = query.shape[2]
    shared = sum(sharded_sequences.held_tokens) if sharded_sequences else 0
    if packed_lengths is None or sum(packed_lengths) + shared != length:
        beside = f" with {shared} tokens of shared sequences" if shared else ""
        raise ValueError(
            f"packed_lengths {packed_lengths}{beside} must sum to the sequence length {length}; run a batch that is no "
            "pack within trimtab.runtime.attention.stock_attention(model)"
        )
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    if sharded_sequences and sharded_sequences.groups:
        attended = sharded_attention(
            query, key, value, sharded_sequences, packed_lengths, scaling=scaling, dropout=dropout
        )
    else:
        attended = varlen_attention(query, key, value, packed_lengths, scaling=scaling, dropout=dropout)
    return attended[None].contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    return None
