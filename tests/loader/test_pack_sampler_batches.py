"""Packs in a plain DataLoader: exact length, every sample once, padding without loss."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from pack_cases import pack_sampler, vlm_problem
from torch.utils.data import DataLoader

from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.pack_batches import PackBatchSampler, ZeroLossDataset, ZeroLossRow, ignore_labels


class Samples:
    """Samples whose one label is their row."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"row": row, "labels": torch.tensor([row])}


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def labels(batches: list[list[dict[str, Any]]]) -> list[int]:
    return [int(sample["labels"]) for batch in batches for sample in batch]


def loader(batches: PackBatchSampler, workers: int = 0) -> DataLoader:
    dataset = ZeroLossDataset(Samples(), batches=batches)
    return DataLoader(dataset, batch_sampler=batches, collate_fn=as_list, num_workers=workers)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (4, 1), (7, 2)])
def test_ranks_share_an_epoch_and_have_equally_many_batches(ranks: int, micro_batches: int) -> None:
    seen, lengths = [], set()
    for rank in range(ranks):
        batches = PackBatchSampler(pack_sampler(ranks=ranks, micro_batches=micro_batches), rank=rank)
        loaded = list(loader(batches))
        lengths.add(len(loaded))
        seen += [label for label in labels(loaded) if label != -100]
    assert sorted(seen) == list(range(60))
    assert len(lengths) == 1


def test_length_is_what_iterating_yields() -> None:
    batches = PackBatchSampler(pack_sampler(), rank=2)
    for _ in range(3):
        expected = len(batches)
        assert len(loader(batches)) == expected
        assert len(list(batches)) == expected


def test_iterating_again_is_the_next_epoch() -> None:
    batches = PackBatchSampler(pack_sampler(ranks=1), rank=0)
    first, second = list(batches), list(batches)
    assert sorted(row for rows in first for row in rows) == sorted(row for rows in second for row in rows)
    assert first != second


def test_a_broken_off_epoch_is_begun_again_unless_consumed() -> None:
    batches = PackBatchSampler(pack_sampler(), rank=0)
    first = list(islice(batches, 3))
    assert next(iter(batches)) == first[0]
    batches.consumed()
    assert next(iter(batches)) == first[1]


def test_padding_packs_have_no_loss() -> None:
    sampler = pack_sampler(vlm_problem(5), ranks=8)
    padding = next(rank for rank in range(8) if sampler.step(0).is_padding(rank, 0))
    batches = PackBatchSampler(sampler, rank=padding)
    (loaded,) = loader(batches)
    assert loaded
    assert {int(sample["labels"]) for sample in loaded} == {-100}
    (rows,) = PackBatchSampler(sampler, rank=padding)
    assert all(isinstance(row, ZeroLossRow) for row in rows)


def test_workers_know_padding_packs_too() -> None:
    sampler = pack_sampler(ranks=64)
    padding = next(rank for rank in range(64) if sampler.step(0).is_padding(rank, 0))
    (loaded,) = loader(PackBatchSampler(sampler, rank=padding), workers=1)
    assert {int(sample["labels"]) for sample in loaded} == {-100}


def test_a_padding_row_is_still_one_after_pickling() -> None:
    assert isinstance(pickle.loads(pickle.dumps(ZeroLossRow(3))), ZeroLossRow)
    assert [10, 20, 30, 40][ZeroLossRow(3)] == 40


def test_all_ranks_in_turn_for_frameworks_that_deal_themselves() -> None:
    own = [list(PackBatchSampler(pack_sampler(), rank=rank)) for rank in range(4)]
    together = list(PackBatchSampler(pack_sampler(), rank=None))
    assert len(together) == len(PackBatchSampler(pack_sampler(), rank=None)) == 4 * len(own[0])
    for rank in range(4):
        assert together[rank::4] == own[rank]


def test_resume_goes_on_after_the_batches_consumed() -> None:
    batches = PackBatchSampler(pack_sampler(micro_batches=2), rank=1)
    everything = list(PackBatchSampler(pack_sampler(micro_batches=2), rank=1))
    for _ in range(5):  # two steps and half of a third, which runs again
        batches.consumed()
    resumed = PackBatchSampler(pack_sampler(micro_batches=2), rank=1)
    resumed.load_state_dict(batches.state_dict())
    assert len(resumed) == len(everything) - 4
    assert list(resumed) == everything[4:]


def test_a_trainer_may_tell_the_epoch_through_the_dataset() -> None:
    walked = PackBatchSampler(pack_sampler(), rank=0)
    epochs = [list(walked) for _ in range(3)]
    told = PackBatchSampler(pack_sampler(), rank=0)
    dataset = ZeroLossDataset(Samples(), batches=told)
    for epoch in (2, 0, 1, 2):
        dataset.set_epoch(epoch)
        dataset.set_epoch(epoch)
        assert list(told) == epochs[epoch]


def test_the_epoch_told_after_a_resume_keeps_the_place() -> None:
    batches = PackBatchSampler(pack_sampler(), rank=0)
    everything = list(PackBatchSampler(pack_sampler(), rank=0))
    batches.consumed()
    resumed = PackBatchSampler(pack_sampler(), rank=0)
    resumed.load_state_dict(batches.state_dict())
    resumed.set_epoch(0)
    assert list(resumed) == everything[1:]


def test_labels_are_ignored_whatever_holds_them() -> None:
    assert ignore_labels({"labels": [1, 2], "x": 5}) == {"labels": [-100, -100], "x": 5}
    assert ignore_labels({"labels": torch.tensor([[1, 2]])})["labels"].tolist() == [[-100, -100]]
    with pytest.raises(LoaderError, match="no 'labels' to ignore"):
        ignore_labels({"input_ids": [1]})
    with pytest.raises(LoaderError, match="no 'labels' to ignore"):
        ignore_labels((1, 2))


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="rank=4 must lie from 0 to 3"):
        PackBatchSampler(pack_sampler(), rank=4)


def test_a_dataset_shorter_than_the_table_is_named() -> None:
    dataset = ZeroLossDataset(Samples())
    with pytest.raises(LoaderError, match="the packs ask for row 60, but the dataset has 60 samples"):
        dataset[60]
