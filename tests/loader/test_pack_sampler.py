"""Every sample once an epoch, in packs that keep the caps, as many steps on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import epoch_rows, pack_sampler, rows_of, vlm_problem

from trimtab.errors import InfeasibleError, LoaderError, SettingsError
from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.settings import PackSettings


@settings(max_examples=25)
@given(
    samples=st.integers(1, 90),
    ranks=st.integers(1, 9),
    micro_batches=st.integers(1, 3),
    method=st.sampled_from(["best", "isf"]),
)
def test_every_sample_once_an_epoch(samples: int, ranks: int, micro_batches: int, method: str) -> None:
    dealt = PackSampler(
        vlm_problem(samples),
        ranks=ranks,
        micro_batches=micro_batches,
        seed=1,
        settings=PackSettings(method=method, window=3, pool=16),  # type: ignore[arg-type]
    )
    for _ in range(3):
        assert sorted(epoch_rows(dealt)) == list(range(samples))


def test_no_pack_passes_a_cap_and_none_is_empty() -> None:
    problem = vlm_problem()
    dealt = pack_sampler(problem)
    for number in range(dealt.steps_per_epoch):
        packs = dealt.step(number).packs
        assert (packs.sums(problem.loads) <= problem.limits).all()
        assert (packs.counts > 0).all()


@pytest.mark.parametrize(("ranks", "micro_batches"), [(4, 1), (3, 2), (7, 3), (64, 1)])
def test_every_rank_has_a_pack_in_every_micro_batch(ranks: int, micro_batches: int) -> None:
    """Unequal numbers of packs hang a job; what is missing in the last step are padding packs."""
    dealt = pack_sampler(ranks=ranks, micro_batches=micro_batches)
    last = dealt.steps_per_epoch - 1
    for number in range(last + 1):
        step = dealt.step(number)
        assert len(step.packs) == ranks * micro_batches == len(step.zero_loss)
        assert step.micro_batches == micro_batches
        assert number == last or not step.zero_loss.any()


def test_a_padding_pack_repeats_samples_that_do_not_count() -> None:
    dealt = pack_sampler(vlm_problem(5), ranks=8)
    step = dealt.step(0)
    assert sorted(step.rows.tolist()) == list(range(5))
    padding = [rank for rank in range(8) if step.is_padding(rank, 0)]
    assert 0 < len(padding) < 8
    copied = {tuple(step.pack(rank, 0).tolist()) for rank in padding}
    assert len(copied) == 1
    assert copied < {tuple(step.pack(rank, 0).tolist()) for rank in range(8) if rank not in padding}


def test_rows_know_their_slot() -> None:
    step = pack_sampler(ranks=2, micro_batches=3).step(0)
    for slot in range(6):
        in_slot = step.rows[step.slots == slot].tolist()
        assert in_slot == step.pack(slot % 2, slot // 2).tolist()


def test_epochs_have_fresh_packs() -> None:
    def compositions(dealt: PackSampler, begin: int, end: int) -> set[frozenset[int]]:
        steps = [dealt.step(number) for number in range(begin, end)]
        return {frozenset(step.pack(rank, 0).tolist()) for step in steps for rank in range(4)}

    dealt = pack_sampler()
    first = dealt.end_of_epoch(0)
    zero, one = compositions(dealt, 0, first), compositions(dealt, first, dealt.end_of_epoch(first))
    of_several = [pack for pack in zero if len(pack) > 1]
    assert len(of_several) > 10
    assert sum(pack in one for pack in of_several) < len(of_several) / 3


def test_no_packs_are_dropped_at_the_tail() -> None:
    """The published sampler drops the packs that fill no step, the same ones every epoch."""
    dealt = pack_sampler(vlm_problem(61), ranks=7)
    for epoch in range(3):
        assert sorted(epoch_rows(dealt)) == list(range(61)), epoch


def test_steps_ahead_can_be_asked_for_across_epochs() -> None:
    ahead, later = pack_sampler(), pack_sampler()
    end = ahead.end_of_epoch(ahead.end_of_epoch(0))
    expected = [ahead.step(number).packs.rows.tolist() for number in range(end)]
    epoch_rows(later)
    first = later.next_step
    assert [later.step(number).packs.rows.tolist() for number in range(first, end)] == expected[first:]


def test_total_steps_count_every_epoch() -> None:
    dealt = pack_sampler()
    expected = dealt.total_steps(3)
    for _ in range(3):
        epoch_rows(dealt)
    assert dealt.next_step == expected
    assert dealt.total_steps(3) == expected


def test_oversized_samples_are_listed_and_take_no_other_with_them() -> None:
    problem = vlm_problem()
    problem.loads[[7, 30], 1] = 5000
    dealt = PackSampler(problem, ranks=4, seed=0, on_oversized="skip")
    assert dealt.oversized.tolist() == [7, 30]
    assert sorted([*epoch_rows(dealt), 7, 30]) == list(range(60))


def test_an_oversized_sample_is_an_error_by_default() -> None:
    problem = vlm_problem()
    problem.loads[[7, 30], 1] = [5000, 5100]
    with pytest.raises(
        InfeasibleError,
        match=r"row 7: tokens=5000 exceeds its cap of 4096 \(2 of 60 .*\); raise the caps \(all fit at .*tokens 5100\)",
    ):
        PackSampler(problem, ranks=4, seed=0)


def test_a_table_of_oversized_samples_is_refused() -> None:
    problem = PackProblem.from_columns({"tokens": np.array([50, 60])}, {"tokens": 40})
    with pytest.raises(InfeasibleError, match="2 of 2 samples"):
        PackSampler(problem, ranks=1, seed=0, on_oversized="skip")


def test_an_empty_table_is_refused() -> None:
    problem = PackProblem.from_columns({"tokens": np.zeros(0, dtype=np.int64)}, {"tokens": 40})
    with pytest.raises(InfeasibleError, match="no sample to pack"):
        PackSampler(problem, ranks=1, seed=0)


@pytest.mark.parametrize("change", [{"ranks": 0}, {"micro_batches": 0}, {"seed": -1}])
def test_numbers_too_small_are_refused(change: dict[str, int]) -> None:
    arguments = {"ranks": 1, "seed": 0} | change
    with pytest.raises(SettingsError, match=next(iter(change))):
        PackSampler(vlm_problem(), **arguments)  # type: ignore[arg-type]


def test_a_replacement_is_another_sample_in_a_micro_batch_of_its_own() -> None:
    problem = vlm_problem()
    dealt = pack_sampler(problem, ranks=4)
    before = dealt.step(3)
    chosen = dealt.replace(bad_rows=[2, 5], in_step=3)
    after = dealt.step(3)
    assert not {2, 5} & set(chosen)
    assert after.rows.tolist() == [*before.rows.tolist(), *chosen]
    assert after.micro_batches == before.micro_batches + 1
    assert [after.is_padding(rank, 1) for rank in range(4)] == [False, False, True, True]
    assert (after.packs.sums(problem.loads) <= problem.limits).all()


def test_a_replacement_is_never_oversized() -> None:
    problem = vlm_problem(6)
    problem.loads[1:5, 1] = 5000
    dealt = PackSampler(problem, ranks=1, seed=0, on_oversized="skip")
    assert {dealt.replace(bad_rows=[0], in_step=step)[0] for step in range(20)} == {5}


def test_steps_before_the_present_epoch_cannot_be_made() -> None:
    dealt = pack_sampler()
    epoch_rows(dealt)
    epoch_rows(dealt)
    with pytest.raises(LoaderError, match="step 0 lies before the present epoch"):
        rows_of(dealt, 0, 1)
