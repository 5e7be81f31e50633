"""The list of bad samples that ends a run."""

from __future__ import annotations

from typing import Any

from trimtab.training.bad_samples import bad_sample_lines


def entry(step: int, name: str = "a") -> dict[str, Any]:
    return {"step": step, "sample_id": name, "reason": "cut off", "replacement": "b", "joins_step": step + 6}


def lines_of(*entries: dict[str, Any], steps: int = 100) -> list[str]:
    return bad_sample_lines(entries, what="sample", outcome="carried no loss", steps=steps)


def test_a_run_without_any_lists_none() -> None:
    assert lines_of() == []


def test_a_sample_is_told_once_with_its_steps_and_what_replaces_it() -> None:
    assert lines_of(entry(3), entry(9), steps=10) == [
        "1 sample could not be loaded and carried no loss, 2 times in all:",
        "  a: cut off; step 3 (b joins step 9), step 9 (b joins step 15 if the run is resumed with more than 15 steps)",
    ]
    assert lines_of(*map(entry, range(5)))[1].endswith("step 2 (b joins step 8), and 2 steps more")


def test_long_lists_are_cut_and_say_where_the_rest_is() -> None:
    lines = lines_of(*(entry(0, f"s{row}") for row in range(23)))
    assert len(lines) == 22
    assert lines[-1] == "  and 3 more, see bad_samples.json"
