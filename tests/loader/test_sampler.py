"""Every sample once an epoch, resumable, whatever turns out bad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import CheckpointError, SettingsError
from trimtab.loader.sampler import StepSampler


def sampler(num_samples: int = 10, samples_per_step: int = 4, seed: int = 0) -> StepSampler:
    return StepSampler(num_samples=num_samples, samples_per_step=samples_per_step, seed=seed)


@given(num_samples=st.integers(1, 60), size=st.integers(1, 60), seed=st.integers(0, 3), epoch=st.integers(0, 2))
def test_every_sample_once_an_epoch(num_samples: int, size: int, seed: int, epoch: int) -> None:
    size = min(size, num_samples)
    dealt = sampler(num_samples, size, seed)
    steps = range(epoch * dealt.steps_per_epoch, (epoch + 1) * dealt.steps_per_epoch)
    rows = np.concatenate([dealt.rows(step) for step in steps])
    assert sorted(rows.tolist()) == list(range(num_samples))


def test_epochs_are_shuffled_afresh() -> None:
    dealt = sampler(40, 40)
    assert dealt.rows(0).tolist() != dealt.rows(1).tolist()
    assert dealt.rows(0).tolist() == sampler(40, 40).rows(0).tolist()


def test_resume_goes_on_after_what_was_consumed() -> None:
    first = sampler()
    for step in range(5):
        first.consumed(step)
    first.replace(bad_rows=[3], in_step=8)
    second = sampler()
    second.load_state_dict(first.state_dict())
    assert second.next_step == 5
    assert [second.rows(step).tolist() for step in range(5, 12)] == [first.rows(step).tolist() for step in range(5, 12)]


def test_a_replacement_is_another_sample_in_a_later_step() -> None:
    dealt = sampler()
    before = dealt.rows(6).tolist()
    (chosen,) = dealt.replace(bad_rows=[2], in_step=6)
    assert chosen != 2
    assert dealt.rows(6).tolist() == [*before, chosen]
    assert sampler().replace(bad_rows=[2], in_step=6) == [chosen]


def test_a_replacement_is_no_sample_its_step_has_unless_all_are() -> None:
    dealt = sampler(num_samples=10, samples_per_step=7)
    assert not set(dealt.rows(2).tolist()) & set(dealt.replace(bad_rows=[8, 9], in_step=2))
    small = sampler(num_samples=4, samples_per_step=4)
    assert small.replace(bad_rows=[0], in_step=1)[0] in (1, 2, 3)
    assert sampler(num_samples=1, samples_per_step=1).replace(bad_rows=[0], in_step=1) == [0]


def test_a_dataset_smaller_than_a_step_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="3 samples, fewer than samples_per_step=4; set samples_per_step to at most 3"
    ):
        sampler(num_samples=3)


@pytest.mark.parametrize(("change", "name"), [({"seed": 1}, "seed"), ({"num_samples": 11}, "num_samples")])
def test_state_of_another_run_is_refused(change: dict[str, int], name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        sampler(**change).load_state_dict(sampler().state_dict())
