"""Packs of short sequences that share an exchange (h_pack, H_pack) count where short samples are shared."""

from __future__ import annotations

from simulate_cases import job_with, result_of


def test_larger_packs_save_latency_where_ranks_share_short_samples() -> None:
    speeds = [
        result_of(
            job_with(data="geo3k", batch_size=128, strategies=("uniform-4",), **changed), "uniform-4"
        ).tokens_per_gpu_s
        for changed in ({"pack_below": 0}, {"pack_tokens": 2048}, {"pack_tokens": 65_536})
    ]
    assert speeds == sorted(speeds)
    assert speeds[-1] > speeds[0]
