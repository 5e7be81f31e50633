"""Placeholders behave as the tensors they stand for, and cost the same whatever those cost."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from trimtab.errors import CheckpointError, MetadataError, SettingsError
from trimtab.families.registry import family_for
from trimtab.loader.placeholder import Placeholder, concatenate
from trimtab.loader.proxy_batch import PIXELS, ProxyBatch, concatenate_batches
from trimtab.loader.proxy_loader import ProxyDataLoader
from trimtab.schema.metadata import SampleMetadata, Visual
from trimtab.schema.table import MetadataTable

GEOMETRY = family_for("qwen2_5_vl").defaults
LENGTHS = [3, 0, 5, 1, 4]


def whole() -> Placeholder:
    count = len(LENGTHS)
    return Placeholder(
        name="x",
        dtype=torch.float32,
        row_shape=(2,),
        table="t",
        sample=np.arange(count),
        start=np.zeros(count, dtype=np.int64),
        stop=np.array(LENGTHS),
    )


def loaded(placeholder: Placeholder) -> torch.Tensor:
    """The real tensor: every row tells its sample and its place in it."""
    pieces = zip(placeholder.sample, placeholder.start, placeholder.stop, strict=True)
    rows = [[float(sample), float(row)] for sample, start, stop in pieces for row in range(start, stop)]
    return torch.tensor(rows).reshape(-1, 2)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.lists(st.integers(0, 4), max_size=6)),
        st.tuples(st.just("repeat"), st.integers(0, 3)),
        st.tuples(st.just("slice"), st.tuples(st.integers(-9, 20), st.integers(-9, 20))),
        st.tuples(st.just("concatenate"), st.none()),
    ),
    max_size=4,
)


@given(OPERATIONS)
def test_operations_equal_those_on_the_tensor(operations: list[tuple[str, Any]]) -> None:
    spec = whole()  # of float32 [13, 2]
    for name, argument in operations:
        before, lengths = loaded(spec), (spec.stop - spec.start).tolist()
        if name == "take":
            argument = [index for index in argument if index < spec.pieces]
            spec = spec.take(argument)
            expected = torch.cat([before.new_empty(0, 2), *(before.split(lengths)[index] for index in argument)])
        elif name == "repeat":
            spec = spec.repeat(argument)
            expected = torch.cat([before.new_empty(0, 2), *(p for p in before.split(lengths) for _ in range(argument))])
        elif name == "slice":
            spec = spec.slice(*argument)
            expected = before[slice(*argument)]
        else:
            spec = concatenate([spec, spec])
            expected = torch.cat([before, before])
        torch.testing.assert_close(loaded(spec), expected, rtol=0, atol=0)
        assert spec.shape == tuple(expected.shape)


def test_a_fake_has_shape_and_dtype_and_joins_its_kind() -> None:
    with FakeTensorMode() as mode:
        fake = whole().as_fake(mode)
        assert (fake @ torch.empty(2, 7)).shape == (13, 7)
    assert fake.dtype is torch.float32
    assert whole().nbytes == 13 * 2 * 4


def test_tensors_of_different_kinds_are_not_concatenated() -> None:
    other = Placeholder(**{**{f: getattr(whole(), f) for f in ("name", "table", "sample", "start", "stop")},
                           "dtype": torch.int64, "row_shape": (2,)})  # fmt: skip
    with pytest.raises(MetadataError, match=r"x torch\.float32"):
        concatenate([whole(), other])


def table(samples: int, *, side: int = 8) -> MetadataTable:
    """Samples of one image of side x side patches each, every third of two."""
    visual = Visual(kind="image", grid_t=1, grid_h=side, grid_w=side, source="/data/photos/some-photo-name.jpg")
    return MetadataTable.from_samples(
        [
            SampleMetadata(
                sample_id=f"sample-{n}", text_tokens=n, loss_tokens=1, visuals=(visual,) * (1 + (n % 3 == 0))
            )
            for n in range(samples)
        ],
        geometry=GEOMETRY,
    )


def batch_of(rows: list[int]) -> ProxyBatch:
    chosen = np.array(rows)
    return ProxyBatch(
        step=0,
        table=table(12).digest,
        rows=chosen,
        reply=np.zeros(len(rows), dtype=np.int64),
        metadata=table(12).batch(chosen),
        patch_values=GEOMETRY.patch_values,
    )


def test_a_batch_takes_repeats_slices_and_concatenates() -> None:
    replies = batch_of([3, 7]).repeat(3)
    assert replies.sample_ids == ("sample-3",) * 3 + ("sample-7",) * 3
    assert replies.reply.tolist() == [0, 1, 2, 0, 1, 2]
    assert replies.metadata.visual_keys.tolist() == [*replies.metadata.visual_keys[:2].tolist() * 3,
                                                     *[replies.metadata.visual_keys[-1]] * 3]  # fmt: skip
    assert replies.tensors[PIXELS].shape == (3 * 2 * 64 + 3 * 64, GEOMETRY.patch_values)
    parts = replies.split(4)
    assert [len(part) for part in parts] == [2, 2, 1, 1]
    joined = concatenate_batches(parts)
    assert joined.rows.tolist() == replies.rows.tolist()
    assert joined.metadata.visual_offsets.tolist() == replies.metadata.visual_offsets.tolist()
    assert joined.tensors[PIXELS].shape == replies.tensors[PIXELS].shape
    assert replies.slice(-2, 99).reply.tolist() == [1, 2]


def test_the_cost_of_a_batch_is_independent_of_resolution() -> None:
    def bytes_per_sample(side: int) -> float:
        loader = ProxyDataLoader(table(200, side=side), batch_size=100)
        return max(len(pickle.dumps((batch, batch.tensors))) for batch in loader) / 100

    small, large = bytes_per_sample(2), bytes_per_sample(200)
    assert small == large < 2048


def test_the_loader_iterates_counts_and_resumes_like_a_stateful_dataloader() -> None:
    samples = table(10)
    loader = ProxyDataLoader(samples, batch_size=4, seed=5)
    assert len(loader) == 3
    epoch = [batch.rows.tolist() for batch in loader]
    assert sorted(row for rows in epoch for row in rows) == list(range(10))
    second = [batch.rows.tolist() for batch in loader]
    assert second != epoch

    broken_off = ProxyDataLoader(samples, batch_size=4, seed=5)
    next(iter(broken_off))
    state = broken_off.state_dict()
    assert [batch.rows.tolist() for batch in broken_off] == second, "a new iteration begins the next epoch"

    resumed = ProxyDataLoader(samples, batch_size=4, seed=5)
    resumed.load_state_dict(state)
    assert [batch.rows.tolist() for batch in resumed] == epoch[1:]
    assert [batch.rows.tolist() for batch in resumed] == second


@pytest.mark.parametrize("to_selection", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_masks_and_places_from_the_end_select_as_tensors_do(to_selection: Any) -> None:
    batch, spec = batch_of([3, 7, 5]), whole()
    assert batch.take(to_selection([False, True, True])).rows.tolist() == [7, 5]
    assert batch.take(to_selection([-1, 0, -1])).rows.tolist() == [5, 3, 5]
    assert len(batch.take([])) == 0
    assert spec.take(to_selection([True, False, False, True, False])).sample.tolist() == [0, 3]
    assert spec.take(to_selection([-2])).sample.tolist() == [3]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ([0.7, 1.2], "whole numbers"),
        (np.array([1.0]), "whole numbers"),
        (["0"], "whole numbers"),
        ([True], "has 5 truths, given 1"),
        ([5], "place 5 is outside the 5"),
        ([0, -6], "place -6 is outside the 5"),
        ([[0]], r"shape \(1, 1\)"),
    ],
)
def test_selections_that_no_tensor_takes_are_refused(selection: Any, message: str) -> None:
    for taker in (whole(), batch_of([0, 1, 2, 3, 4])):
        with pytest.raises(MetadataError, match=message):
            taker.take(selection)


def test_counts_that_make_no_sense_are_refused_by_name() -> None:
    batch = batch_of([3, 7])
    for attempt, message in [
        (lambda: batch.split(0), "parts=0 must be at least 1"),
        (lambda: batch.repeat(-1), "replies=-1 must be at least 0"),
        (lambda: batch.repeat(1.5), r"replies=1\.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: whole().repeat(-1), "times=-1 must be at least 0"),
        (lambda: ProxyDataLoader(table(6), batch_size=2.5), r"batch_size=2\.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: ProxyDataLoader(table(6), batch_size=0), "batch_size=0 must be at least 1"),
    ]:
        with pytest.raises(SettingsError, match=message):
            attempt()
    assert len(batch.repeat(0)) == 0


def test_a_state_that_is_none_is_refused_by_what_it_lacks() -> None:
    loader = ProxyDataLoader(table(6), batch_size=2)
    with pytest.raises(CheckpointError, match="the state lacks next_step, extra, seed, num_samples, samples_per_step"):
        loader.load_state_dict({})
    with pytest.raises(CheckpointError, match="the state lacks next_step;"):
        loader.load_state_dict({name: value for name, value in loader.state_dict().items() if name != "next_step"})
    with pytest.raises(CheckpointError, match="made with packing"):
        loader.load_state_dict({"stretches": []})


def test_batches_and_placeholders_of_two_tables_are_not_mixed() -> None:
    one, other = (next(iter(ProxyDataLoader(table(samples), batch_size=4))) for samples in (8, 9))
    with pytest.raises(MetadataError, match="different metadata tables"):
        concatenate_batches([one, other])
    with pytest.raises(MetadataError, match="different metadata tables"):
        concatenate([one.tensors[PIXELS], other.tensors[PIXELS]])
    again = next(iter(ProxyDataLoader(table(8), batch_size=4)))
    assert len(concatenate_batches([one, pickle.loads(pickle.dumps(again))])) == 8, "one table, read twice"
    assert table(8).digest != table(8, side=6).digest
