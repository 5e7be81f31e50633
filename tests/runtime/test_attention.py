"""Samples of one pack never see each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trimtab.demo.tiny_models import tiny_model
from trimtab.runtime.attention import packed_attention, stock_attention, use_packed_attention


def qkv(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((1, 4, length, 8), (1, 2, length, 8), (1, 2, length, 8))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


def test_batches_that_are_no_packs_run_within_stock_attention() -> None:
    stock, packed = tiny_model("qwen2_5_vl").eval(), tiny_model("qwen2_5_vl").eval()
    use_packed_attention(packed)
    ids = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5]])
    asked = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1] * 5]), "max_new_tokens": 6, "do_sample": False}
    expected = stock.generate(ids, **asked)
    with pytest.raises(ValueError, match=r"run a batch that is no pack within .*stock_attention\(model\)"):
        packed.generate(ids, **asked)
    with stock_attention(packed):
        assert torch.equal(packed.generate(ids, **asked), expected)
    packed(input_ids=ids[1:], packed_lengths=(5,), use_cache=False)


def test_each_segment_is_plain_causal_attention() -> None:
    query, key, value = qkv(9)
    found, _ = packed_attention(nn.Identity(), query, key, value, None, packed_lengths=(4, 1, 4))
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        parts = [
            tensor[:, :, begin:end] for tensor in (query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1))
        ]
        scores = (parts[0] @ parts[1].transpose(-1, -2)) / 8**0.5
        future = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        expected = scores.masked_fill(future, float("-inf")).softmax(-1) @ parts[2]
        torch.testing.assert_close(found[:, begin:end], expected.transpose(1, 2))


def test_lengths_must_cover_the_pack() -> None:
    query, key, value = qkv(5)
    with pytest.raises(ValueError, match="must sum to the sequence length 5"):
        packed_attention(nn.Identity(), query, key, value, None, packed_lengths=(2, 2))


def test_changing_one_sample_leaves_the_others_bitwise_alone() -> None:
    model = tiny_model("qwen2_5_vl").eval()
    use_packed_attention(model)
    ids = torch.arange(3, 15)[None]
    changed = ids.clone()
    changed[0, :5] = 77
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(3, 1, -1)
    with torch.no_grad():
        first, second = (
            model(input_ids=i, position_ids=positions, packed_lengths=(5, 7), use_cache=False).logits
            for i in (ids, changed)
        )
    assert torch.equal(first[0, 5:], second[0, 5:])
    assert not torch.equal(first[0, :5], second[0, :5])
