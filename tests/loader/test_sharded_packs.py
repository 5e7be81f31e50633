"""What ranks hold of shared samples adds up to the samples: tokens, positions, targets, cut images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.sharded_cases import NESTED_TEXT, NESTED_VISUAL, ON_EIGHT, PACKING, Case, packs_of

from trimtab.loader.collate import needed_rows
from trimtab.planning.sequence_slices import held_slices, sequence_groups
from trimtab.runtime.packed_batch import PackedBatch

LONG_IMAGE = ((8, 0, 0), *ON_EIGHT[1:])


@pytest.mark.parametrize("model", ["text", "qwen2_5_vl", "qwen3_vl"])
def test_packs_of_all_ranks_add_up_to_the_samples(model: str) -> None:
    cases = NESTED_TEXT if model == "text" else NESTED_VISUAL
    case = Case(model=model, cases=cases, placed=LONG_IMAGE, heads=4, kv_heads=2, loss_tokens=5)
    samples = case.samples(case.built())
    plan = case.plan(samples.batch, 8)
    packs = [packs_of(case, samples, plan, rank)[0] for rank in range(8)]
    groups = sequence_groups(plan, samples.batch.tokens, 0, packing=PACKING)
    found: dict[int, list[tuple[int, int, Any]]] = {}
    for rank, batch in enumerate(packs):
        begin = 0
        for part in held_slices(plan, samples.batch.tokens, groups, rank, 0):
            end = begin + len(part)
            tokens = batch.input_ids[0, begin:end], batch.position_ids[:, 0, begin:end]
            found.setdefault(part.row, []).append((part.start, part.stop, tokens))
            begin = end
        assert begin == batch.tokens or (begin, batch.tokens) == (0, 1)
    for row, sample in samples.packable().items():
        parts = sorted(found[row], key=lambda each: each[0])
        assert torch.equal(torch.cat([ids for _, _, (ids, _) in parts]), sample.input_ids)
        assert torch.equal(torch.cat([at for _, _, (_, at) in parts], dim=1), sample.position_ids)
        assert_targets(row, sample, packs)


def assert_targets(row: int, sample: Any, packs: list[PackedBatch]) -> None:
    """Each loss token is predicted once, by the token before it, wherever the cut falls."""
    held = [(batch.loss_rows == row, batch) for batch in packs]
    places = torch.cat([batch.loss_places[own] for own, batch in held])
    targets = torch.cat([batch.targets[own] for own, batch in held])
    before = torch.cat([batch.input_ids[0, batch.loss_positions[own]] for own, batch in held])
    predicted = torch.nonzero(sample.loss_weights)[:, 0]
    predicted = predicted[predicted > 0]
    order = torch.argsort(places)
    assert places[order].tolist() == list(range(len(predicted)))
    assert torch.equal(targets[order], sample.input_ids[predicted])
    assert torch.equal(before[order], sample.input_ids[predicted - 1])


def test_an_image_is_cut_over_several_ranks_and_some_hold_none_of_it() -> None:
    case = Case(model="qwen3_vl", cases=NESTED_VISUAL, placed=LONG_IMAGE, heads=4, kv_heads=2)
    samples = case.samples(case.built())
    plan = case.plan(samples.batch, 8)
    packs = [packs_of(case, samples, plan, rank)[0] for rank in range(8)]
    config = samples.config
    for batch in packs:
        videos = int((batch.input_ids == config.video_token_id).sum())
        images = int((batch.input_ids == config.image_token_id).sum())
        assert (int(batch.visual_is_video.sum()), int((~batch.visual_is_video).sum())) == (videos, images)
        assert batch.visual_route is not None
        assert batch.visual_route.result_rows == videos + images
    first = sequence_groups(plan, samples.batch.tokens, 0, packing=PACKING)[0]
    own_image = np.flatnonzero(samples.tokens[0].numpy() == config.image_token_id)
    holding = {
        rank
        for rank in range(8)
        for part in first.slices(rank)
        if np.isin(own_image, range(part.start, part.stop)).any()
    }
    assert len(holding) >= 3
    assert min(len(batch.visual_is_video) for batch in packs) < 8


def test_a_rank_reads_the_samples_it_holds_or_encodes_for() -> None:
    case = Case(model="qwen2_5_vl", cases=NESTED_VISUAL, placed=ON_EIGHT, heads=4, kv_heads=2)
    samples = case.samples(case.built())
    plan = case.plan(samples.batch, 8)
    for rank in range(8):
        rows = set(needed_rows(plan, samples.batch, rank).tolist())
        held = {row for row in range(len(plan)) if plan.rank[row] <= rank < plan.rank[row] + plan.degree[row]}
        encoded = set(samples.batch.sample_of_visual[plan.units.visual[plan.units.rank == rank]].tolist())
        assert rows == held | {row for row in encoded if plan.degree[row] > 1}
