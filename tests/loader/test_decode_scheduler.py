"""What is decoded next, what is kept, and what is tried again."""

from __future__ import annotations

import pytest

from trimtab.errors import LoaderError
from trimtab.families.registry import family_for
from trimtab.loader.executors.decode_task import DecodeTask, MediaRequest
from trimtab.loader.executors.scheduler import MAX_ATTEMPTS, DecodeScheduler, least_loaded
from trimtab.schema.metadata import Visual

GEOMETRY = family_for("qwen2_5_vl").defaults
SIZE = 4 * GEOMETRY.patch_values * 4


def ask(name: str, *, step: int = 0, frames: int = 1, source_side: int = 100) -> MediaRequest:
    visual = Visual(
        kind="video", grid_t=frames, grid_h=2, grid_w=2, source=name, width=source_side, height=source_side,
        frames=2 * frames, seconds=1.0,
    )  # fmt: skip
    task = DecodeTask(visual=visual, geometry=GEOMETRY, frame_start=0, frame_stop=frames)
    return MediaRequest(task=task, frame_start=0, frame_stop=frames, step=step)


def scheduler(items: int, max_runs: int = 100) -> DecodeScheduler[str]:
    return DecodeScheduler(budget_bytes=items * SIZE, max_runs=max_runs)


def decode(of: DecodeScheduler[str]) -> str | None:
    """Decode the next run; returns its source."""
    chosen = of.next_run()
    if chosen is None:
        return None
    run, _ = chosen
    of.ready(run, "here")
    return run.task.visual.source


def test_earlier_steps_come_first_then_longer_items() -> None:
    plan = scheduler(10)
    for lease, request in enumerate([ask("b1", step=1), ask("short"), ask("long", source_side=900)]):
        plan.want(lease, request)
    assert [decode(plan) for _ in range(4)] == ["long", "short", "b1", None]


def test_what_somebody_waits_for_comes_first_and_beyond_the_budget() -> None:
    plan = scheduler(1)
    for lease, name in enumerate("abcd"):
        plan.want(lease, ask(name, step=lease))
    assert [decode(plan), decode(plan)] == ["a", None], "later steps wait for the first to be released"
    plan.hurry(2)
    assert [decode(plan), decode(plan)] == ["c", None]
    plan.release(2)
    plan.want(4, ask("c", step=4))
    assert decode(plan) is None, "whoever asks later does not inherit the hurry"
    plan.hurry(99)


def test_what_no_request_needs_is_evicted_the_least_recently_used_first() -> None:
    plan = scheduler(2)
    for lease, name in enumerate("ab"):
        plan.want(lease, ask(name))
        assert decode(plan) == name
        plan.release(lease)
    assert not plan.want(2, ask("a"))[1], "a is still there, and now the last used"
    plan.release(2)
    plan.want(3, ask("c"))
    assert decode(plan) == "c"
    assert plan.store.find(ask("b").task) is None
    assert plan.store.find(ask("a").task) is not None
    assert plan.store.held_bytes == 2 * SIZE


def test_what_current_steps_need_is_kept_and_later_ones_wait() -> None:
    plan = scheduler(1)
    plan.want("now", ask("a", step=3))
    plan.want("next", ask("b", step=4))
    assert [decode(plan), decode(plan)] == ["a", None]
    plan.release("now")
    assert decode(plan) == "b"


def test_the_number_of_runs_is_bounded_too() -> None:
    plan = scheduler(100, max_runs=1)
    plan.want("now", ask("a", step=0))
    plan.want("next", ask("b", step=1))
    assert [decode(plan), decode(plan)] == ["a", None]


def test_a_lost_run_is_tried_again_but_not_for_ever() -> None:
    plan = scheduler(4)
    plan.want("x", ask("a"))
    for attempt in range(MAX_ATTEMPTS):
        chosen = plan.next_run()
        assert chosen is not None
        assert plan.lost(chosen[0]) == (attempt < MAX_ATTEMPTS - 1)
    assert [lease for lease, _ in plan.failed(chosen[0])] == ["x"]
    assert plan.store.held_bytes == 0
    assert plan.want("y", ask("a"))[1], "a later request tries it afresh"


def test_what_cannot_be_had_any_more_is_decoded_again_for_whoever_asks_next() -> None:
    plan = scheduler(4)
    plan.want("x", ask("a"))
    plan.want("y", ask("a"))
    assert decode(plan) == "a"
    plan.forget("x")
    assert plan.store.held_bytes == 0
    assert plan.want("x", ask("a"))[1]
    assert decode(plan) == "a"
    for lease in "xy":
        plan.release(lease)
    assert plan.store.held_bytes == SIZE


def test_requests_nobody_wants_any_more_are_dropped() -> None:
    plan = scheduler(4)
    plan.want(0, ask("a"))
    plan.release(0)
    assert plan.next_run() is None


def test_load_is_work_and_bytes_not_count() -> None:
    assert least_loaded({"a": 30.0, "b": 20.0, "c": 20.0}, {"b": 9, "c": 3}) == "c"
    with pytest.raises(LoaderError, match="no decode process is left"):
        least_loaded({}, {})
