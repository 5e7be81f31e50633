"""Resume from a few numbers: the same steps on as many ranks, every sample once on any other number."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import epoch_rows, pack_sampler, rows_of, vlm_problem

from trimtab.errors import CheckpointError, LoaderError
from trimtab.loader.pack_sampler import PackSampler
from trimtab.planning.packing.settings import PackSettings


def consume(sampler: PackSampler, steps: int) -> list[int]:
    """Train on the next steps; their rows."""
    rows = []
    for _ in range(steps):
        rows += sampler.rows(sampler.next_step).tolist()
        sampler.consumed(sampler.next_step)
    return rows


def through_a_file(sampler: PackSampler) -> dict:
    return json.loads(json.dumps(sampler.state_dict()))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_on_as_many_ranks_the_steps_are_the_same(steps: int) -> None:
    """Half an epoch in, a published sampler re-sorts and shows thousands of samples twice, others never."""
    first, second = pack_sampler(), pack_sampler()
    consume(first, steps)
    second.load_state_dict(through_a_file(first))
    assert second.next_step == steps
    end = first.end_of_epoch(first.end_of_epoch(0)) - 1
    for step in range(steps, end):
        assert second.step(step).packs.rows.tolist() == first.step(step).packs.rows.tolist()
        assert second.step(step).zero_loss.tolist() == first.step(step).zero_loss.tolist()


@settings(max_examples=25)
@given(
    stops=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2), st.integers(0, 3)), min_size=1, max_size=4),
    seed=st.integers(0, 5),
)
def test_on_other_ranks_every_sample_once_an_epoch(stops: list[tuple[int, int, int]], seed: int) -> None:
    """From 8 to 16 ranks, the published sampler never shows a quarter of the packs and shows as many twice."""
    problem, state, seen = vlm_problem(150, seed), None, []
    for ranks, micro_batches, steps in stops:
        sampler = pack_sampler(problem, ranks=ranks, micro_batches=micro_batches)
        if state is not None:
            sampler.load_state_dict(state)
        left = sampler.end_of_epoch(sampler.next_step) - sampler.next_step if sampler.epoch == 0 else 0
        seen += consume(sampler, min(steps, max(0, left - 1)))
        state = through_a_file(sampler)
    seen += epoch_rows(sampler)
    assert sorted(seen) == list(range(150))
    assert sorted(epoch_rows(sampler)) == list(range(150))


def test_a_change_of_ranks_and_back_resumes_both_ways() -> None:
    problem = vlm_problem(150)
    eight, three = pack_sampler(problem, ranks=8), pack_sampler(problem, ranks=3)
    seen = consume(eight, 4)
    three.load_state_dict(through_a_file(eight))
    seen += consume(three, 7)
    again = pack_sampler(problem, ranks=8)
    again.load_state_dict(through_a_file(three))
    seen += epoch_rows(again)
    assert sorted(seen) == list(range(150))
    assert again.next_step == again.state_dict()["next_step"] > 11


def test_steps_of_the_earlier_ranks_cannot_be_made_again() -> None:
    first, second = pack_sampler(ranks=4), pack_sampler(ranks=2)
    consume(first, 3)
    second.load_state_dict(first.state_dict())
    with pytest.raises(LoaderError, match="step 1 ran on another number of ranks; the first that can be made is 3"):
        second.rows(1)


def test_an_epoch_that_ended_is_not_repeated_on_other_ranks() -> None:
    first, second = pack_sampler(ranks=4), pack_sampler(ranks=8)
    epoch_rows(first)
    second.load_state_dict(through_a_file(first))
    assert sorted(epoch_rows(second)) == list(range(60))
    assert second.epoch == 1


def test_the_state_is_small_and_does_not_grow() -> None:
    problem = vlm_problem(3000)
    dealt = PackSampler(problem, ranks=4, seed=0)
    consume(dealt, 100)
    assert len(json.dumps(dealt.state_dict())) < 600


def test_resuming_deals_one_epoch_however_far_the_run_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaying takes hours on large sets; here the third epoch alone is packed."""
    from trimtab.loader import pack_sampler as module

    first, second = pack_sampler(), pack_sampler()
    epoch_rows(first)
    epoch_rows(first)
    consume(first, 5)
    packed = []
    pack_epoch = module.pack_epoch
    monkeypatch.setattr(module, "pack_epoch", lambda *a, **k: packed.append(k["epoch"]) or pack_epoch(*a, **k))
    second.load_state_dict(first.state_dict())
    rows_of(second, second.next_step, second.next_step + 1)
    assert packed == [2]


def test_replacements_survive_a_resume() -> None:
    first, second = pack_sampler(), pack_sampler()
    consume(first, 2)
    first.replace(bad_rows=[3], in_step=5)
    second.load_state_dict(through_a_file(first))
    assert second.rows(5).tolist() == first.rows(5).tolist()


def test_prefetched_steps_are_not_consumed() -> None:
    dealt = pack_sampler()
    rows_of(dealt, 0, 6)
    assert dealt.state_dict()["next_step"] == 0


@pytest.mark.parametrize("change", ["seed", "settings", "table_and_caps"])
def test_state_of_another_run_is_refused(change: str) -> None:
    problem = vlm_problem()
    if change == "table_and_caps":
        problem.loads[4, 1] += 1
    other = PackSampler(
        problem,
        ranks=4,
        seed=1 if change == "seed" else 0,
        settings=PackSettings(window=4 if change == "settings" else 3, pool=16),
    )
    with pytest.raises(CheckpointError, match=f"made with {change}="):
        other.load_state_dict(pack_sampler().state_dict())


@pytest.mark.parametrize("missing", ["epoch", "stretches", "extra"])
def test_a_state_that_is_not_whole_is_refused(missing: str) -> None:
    sampler = pack_sampler()
    state = {name: value for name, value in sampler.state_dict().items() if name != missing}
    for broken in (state, None, {**state, "stretches": [], "extra": 3}):
        with pytest.raises(CheckpointError):
            pack_sampler().load_state_dict(broken)  # type: ignore[arg-type]


def test_steps_of_an_epoch_are_known_at_its_border() -> None:
    sampler = pack_sampler(vlm_problem(300), ranks=2)
    for _ in range(5):
        expected, begin = sampler.steps_per_epoch, sampler.next_step
        epoch_rows(sampler)
        assert sampler.next_step - begin == expected


def test_starting_an_epoch_goes_to_its_beginning() -> None:
    jumped, walked = pack_sampler(), pack_sampler()
    epoch_rows(walked)
    epoch_rows(walked)
    jumped.start_epoch(2)
    expected = walked.step(walked.next_step)
    assert np.array_equal(jumped.step(jumped.next_step).packs.rows, expected.packs.rows)
