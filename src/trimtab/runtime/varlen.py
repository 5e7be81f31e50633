"""Causal attention within each of several sequences laid end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """FlashAttention's variable-length kernel where it is installed and applies, else SDPA sequence by sequence.

    Args:
        query: [T, Hq, D].
        key: [T, Hkv, D], not repeated.
        value: [T, Hkv, D].
        lengths: of the sequences, positive, summing to T.
        scaling: softmax scale.
        dropout: attention dropout probability.

    Returns:
        [T, Hq, D].
    """
    if query.is_cuda and query.dtype in _HALF and lengths and (flash := _flash_varlen()):
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(query.device)
        longest = max(lengths)
        result: Tensor = flash(
            query, key, value, ends, ends, longest, longest, dropout_p=dropout, softmax_scale=scaling, causal=True
        )
        return result
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for q, k, v in zip(
        *(part.transpose(0, 1)[None].split(list(lengths), 2) for part in (query, key, value)), strict=True
    ):
        output = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs) if outputs else query


@cache
def _flash_varlen() -> Callable[..., Any] | None:
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    found: Callable[..., Any] = flash_attn_varlen_func
    return found
